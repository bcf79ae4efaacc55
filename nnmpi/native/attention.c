/* Attention without masks, head by head, as kernels/attention.py describes it, in float32.

   N  samples      T  queries      D  numbers of a query and a key
   K  key heads    S  keys         E  numbers of a value
   G  query heads of each key head

   attention_loop(q, k, v, y, lse, scale, first, mask, keep)
   attention_gradient_loop(q, k, v, y, lse, dy, dq, dk, dv, scale, first, mask, keep)

   first: query i sees keys 0 to first + i; -1: it sees all

   KEYS keys at a time are packed, and of QUERIES queries at a time their scores are computed:

       s = scale q k^T    p = e^(s - lse)    y = p v    dp = dy v^T    ds = scale p (dp - sum(dy y))

       dq += ds k    dk += ds^T q    dv += p^T dy

   Of D and E up to 128 or so all of these are in the second cache. */
#include "lanes.h"
#include "products.h"
#include <stdlib.h>

#ifdef FUSED
#define KEYS 256
#define QUERIES 32

typedef struct {
    npy_intp T, S, D, E;
    npy_intp q, k, v, y, dy, dq, dk, dv; /* how many numbers lie between two rows */
    npy_intp first;
    float scale;
} Head;

static npy_intp whole(npy_intp n, npy_intp of) { return (n + of - 1) / of * of; }

/* `terms` rows of n columns in strips; returns where the strips end. */
static float *packed(npy_intp terms, npy_intp n, const float *B, npy_intp b_term, npy_intp b_column,
                     float *strips) {
    Sizes s = {0, n, terms, 0, 0, b_term, b_column, 0, 0};
    pack(&s, B, strips);
    return strips + terms * whole(n, WIDTH);
}

/* C (m, n) = A B, or C += A B if it adds, of k of the rows of strips that have `terms`. */
static void product_of(npy_intp m, npy_intp n, npy_intp k, const float *A, npy_intp a_row,
                       npy_intp a_term, const float *strips, npy_intp terms, float *C,
                       npy_intp c_row, int adds) {
    Sizes s = {m, n, k, a_row, a_term, 0, 0, c_row, 1};
    packed_product(&s, A, strips, terms, C, adds, NULL);
}

/* The numbers of packed keys and values, of a tile of scores, and of top and total. */
static npy_intp room_for(const Head *h) {
    npy_intp keys = whole(h->S < KEYS ? h->S : KEYS, WIDTH);
    npy_intp D = whole(h->D, WIDTH), E = whole(h->E, WIDTH);
    return keys * (2 * D + 2 * E) + QUERIES * (2 * KEYS + D + E) + 2 * h->T;
}

/* The first query that sees key s. */
static npy_intp first_to_see(const Head *h, npy_intp s) {
    return h->first >= 0 && s > h->first ? s - h->first : 0;
}

/* How many of n keys from s on a query sees. */
static npy_intp seen_by(const Head *h, npy_intp query, npy_intp s, npy_intp n) {
    npy_intp end = h->first + query + 1 - s;
    return h->first >= 0 && end < n ? end : n;
}

/* y and total, of which e^top was taken out, and those of other keys. */
static void join(float *restrict y, const float *restrict sums, npy_intp E, float *top, float here,
                 float *total, float of_sums) {
    float most = *top < here ? here : *top, a = exp_of(*top - most), b = exp_of(here - most);
    for (npy_intp e = 0; e < E; e++) y[e] = y[e] * a + sums[e] * b;
    *total = *total * a + of_sums * b, *top = most;
}

static void forward(const Head *h, const float *q, const float *k, const float *v, float *y,
                    float *lse, float *room) {
    float *keys = room, *top = room + room_for(h) - 2 * h->T, *total = top + h->T;
    for (npy_intp s = 0; s < h->S; s += KEYS, k += KEYS * h->k, v += KEYS * h->v) {
        npy_intp n = h->S - s < KEYS ? h->S - s : KEYS, E = whole(h->E, PER_VECTOR);
        float *values = packed(h->D, n, k, 1, h->k, keys);
        float *scores = packed(n, h->E, v, h->v, 1, values), *sums = scores + QUERIES * KEYS;
        for (npy_intp t = first_to_see(h, s); t < h->T; t += QUERIES) {
            npy_intp m = h->T - t < QUERIES ? h->T - t : QUERIES;
            npy_intp seen = seen_by(h, t + m - 1, s, n);
            float here[QUERIES], of_sums[QUERIES];
            product_of(m, whole(seen, PER_VECTOR), h->D, q + t * h->q, h->q, 1, keys, h->D, scores,
                       KEYS, 0);
            for (npy_intp i = 0; i < m; i++) {
                float *row = scores + i * KEYS;
                npy_intp own = seen_by(h, t + i, s, n);
                times(row, own, h->scale);
                of_sums[i] = exponentials(row, row, own, here + i);
                for (npy_intp j = own; j < seen; j++) row[j] = 0;
            }
            product_of(m, E, seen, scores, KEYS, 1, values, n, sums, E, 0);
            for (npy_intp i = 0; i < m; i++)
                if (s)
                    join(y + (t + i) * h->y, sums + i * E, h->E, top + t + i, here[i],
                         total + t + i, of_sums[i]);
                else {
                    memcpy(y + (t + i) * h->y, sums + i * E, h->E * sizeof *y);
                    top[t + i] = here[i], total[t + i] = of_sums[i];
                }
        }
    }
    for (npy_intp t = 0; t < h->T; t++) {
        times(y + t * h->y, h->E, 1 / total[t]);
        lse[t] = top[t] + log_of(total[t]);
    }
}

/* p and dp, of which `seen` are there, become ds and p; of others as many zeros as make n. */
static void of_scores(float *restrict p, float *restrict dp, npy_intp seen, npy_intp n, float scale,
                      float lse, float delta) {
    for (npy_intp j = 0; j < seen; j++) {
        p[j] = exp_of(scale * p[j] - lse);
        dp[j] = p[j] * (dp[j] - delta) * scale;
    }
    for (npy_intp j = seen; j < n; j++) p[j] = dp[j] = 0;
}

static float dot(const float *x, const float *y, npy_intp n) {
    float sum[LANES] = {0};
    EACH_LANE(n, sum[l] += x[i] * y[i]);
    return sum_of_lanes(sum);
}

/* Writes dq, and adds to dk and dv. */
static void backward(const Head *h, const float *q, const float *k, const float *v, const float *y,
                     const float *lse, const float *dy, float *dq, float *dk, float *dv,
                     float *room) {
    for (npy_intp s = 0; s < h->S; s += KEYS, k += KEYS * h->k, v += KEYS * h->v) {
        npy_intp n = h->S - s < KEYS ? h->S - s : KEYS;
        float *keys = room, *values = packed(h->D, n, k, 1, h->k, keys); /* turned */
        float *rows = packed(h->E, n, v, 1, h->v, values);
        float *p = packed(n, h->D, k, h->k, 1, rows), *dp = p + QUERIES * KEYS;
        float *queries = dp + QUERIES * KEYS;
        for (npy_intp t = first_to_see(h, s); t < h->T; t += QUERIES) {
            npy_intp m = h->T - t < QUERIES ? h->T - t : QUERIES;
            npy_intp seen = seen_by(h, t + m - 1, s, n), some = whole(seen, PER_VECTOR);
            const float *here = q + t * h->q, *g = dy + t * h->dy;
            product_of(m, some, h->D, here, h->q, 1, keys, h->D, p, KEYS, 0);
            product_of(m, some, h->E, g, h->dy, 1, values, h->E, dp, KEYS, 0);
            for (npy_intp i = 0; i < m; i++)
                of_scores(p + i * KEYS, dp + i * KEYS, seen_by(h, t + i, s, n), seen, h->scale,
                          lse[t + i], dot(g + i * h->dy, y + (t + i) * h->y, h->E));
            float *gradients = packed(m, h->D, here, h->q, 1, queries);
            packed(m, h->E, g, h->dy, 1, gradients);
            product_of(m, h->D, seen, dp, KEYS, 1, rows, n, dq + t * h->dq, h->dq, s > 0);
            product_of(seen, h->D, m, dp, 1, KEYS, queries, m, dk + s * h->dk, h->dk, 1);
            product_of(seen, h->E, m, p, 1, KEYS, gradients, m, dv + s * h->dv, h->dv, 1);
        }
    }
}

/* All heads; the arrays are those of the arguments in their order. */
static void heads(const Head *h, const Arguments *a, float *room) {
    npy_intp K = SIZE(a, 'K'), G = SIZE(a, 'G');
    for (npy_intp i = 0; i < SIZE(a, 'N') * K * G; i++) {
        float *of[9];
        for (int j = 0; j < a->arrays; j++) {
            int is_grouped = j != 1 && j != 2 && j < 7; /* but keys, values and their gradients */
            of[j] = (float *)a->at[j] + i / G / K * step(a, j, 0) + i / G % K * step(a, j, 1) +
                    (is_grouped ? i % G * step(a, j, 2) : 0);
        }
        if (a->arrays == 5) forward(h, of[0], of[1], of[2], of[3], of[4], room);
        else
            backward(h, of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7], of[8], room);
    }
}

static npy_intp row(const Arguments *a, int i) { return step(a, i, a->array[i].axes - 2); }

static int attention(Arguments *a) {
    Head h = {.T = SIZE(a, 'T'), .S = SIZE(a, 'S'), .D = SIZE(a, 'D'), .E = SIZE(a, 'E'),
              .q = row(a, 0), .k = row(a, 1), .v = row(a, 2), .y = row(a, 3),
              .scale = a->number[0], .first = a->number[1]};
    if (a->arrays > 5) h.dy = row(a, 5), h.dq = row(a, 6), h.dk = row(a, 7), h.dv = row(a, 8);
    float *room = aligned_alloc(64, whole(room_for(&h) * sizeof *room, 64));
    if (!room) return NO_MEMORY;
    heads(&h, a, room);
    free(room);
    return DONE;
}

static int attention_loop(Arguments *a) { return attention(a); }

static int attention_gradient_loop(Arguments *a) { return attention(a); }
#endif

Kernel attention_kernels[] = {
#ifdef FUSED
    PARTS("NK", attention_loop, "f-NKGTD f-NKSD f-NKSE =f-NKGTE =f-NKGT # % 0 0"),
    PARTS("NK", attention_gradient_loop, "f-NKGTD f-NKSD f-NKSE f-NKGTE f-NKGT f-NKGTE =f-NKGTD "
                                    "=f-NKSD =f-NKSE # % 0 0"),
#endif
    END_OF_KERNELS,
};
