/* Attention without masks, head by head, as kernels/attention.py describes it, in float32, or of
   arrays in 16 bits.

   N  samples      T  queries      D  elements of a query and a key
   K  key heads    S  keys         E  elements of a value
   G  query heads of each key head

   attention_loop(q, k, v, y, lse, scale, first, mask, keep)
   attention_gradient_loop(q, k, v, y, lse, dy, dq, dk, dv, scale, first, mask, keep)

   first: query i sees keys 0 to first + i; -1: it sees all

   KEYS keys at a time are packed, and their scores are computed for some queries at a time:

       s = scale q k^T    p = e^(s - lse)    y = p v    dp = dy v^T    ds = scale p (dp - sum(dy y))

       dq += ds k    dk += ds^T q    dv += p^T dy

   Up to D and E of about 128 all of this fits in the L2 cache. q, k, v and dy have one type, y and
   dq any, and lse, dk, dv and sums are float32. With AVX512-BF16 or AMX p and ds are rounded to
   bfloat16 for products with bfloat16; other 16-bit heads are widened first. Keys that a query does
   not see are multiplied by 0 if they share a tile with visible ones: infinite ones give NaN. */
#include "half_products.h"
#include "lanes.h"

#ifdef FUSED
#define KEYS 256
#define LONGEST MOST_ROWS /* queries at a time */
#define STRIP 32   /* sums have a multiple of this many columns, */
#define TILE (MORE_ROWS + 1) /* and up to this many scratch rows after their rows */

enum { Q, K, V, Y, LSE, DY, DQ, DK, DV, ARRAYS };

/* A matrix of a head: its rows and columns, and the elements between two rows. */
typedef struct {
    void *at;
    npy_intp rows, width, row;
    int half;
} Matrix;

typedef struct {
    const Way *way;
    npy_intp T, S, D, E, first;
    float scale;
    Matrix of[ARRAYS];
} Head;

static npy_intp least(npy_intp a, npy_intp b) { return a < b ? a : b; }

static void *row_of(const Matrix *x, npy_intp i) {
    return (char *)x->at + i * x->row * (x->half ? sizeof(npy_uint16) : sizeof(float));
}

static Side rows_of(const Matrix *x, npy_intp start, npy_intp count) {
    return (Side){row_of(x, start), count, x->width, x->row, 1};
}

static Side turned(Side s) { return (Side){s.at, s.terms, s.lines, s.term, s.line}; }

/* Returns a row in float32: in place, or in `copy`. */
static const float *wide_row(const Matrix *x, npy_intp i, float *copy) {
    if (!x->half) return row_of(x, i);
    widen(x->half, row_of(x, i), copy, x->width);
    return copy;
}

/* Writes sums as row i, rounded if the matrix has 16 bits. */
static void write_row(const Matrix *x, npy_intp i, const float *sums) {
    if (x->half) round_to(x->half, sums, row_of(x, i), x->width);
    else memcpy(row_of(x, i), sums, x->width * sizeof *sums);
}

/* The floats of `rows` rows of sums, with the scratch rows after them. */
static npy_intp sums_of(npy_intp rows, npy_intp width) {
    return (rows + TILE) * whole_of(width, STRIP);
}

/* Takes the next floats of `room`, aligned to a cache line. */
static void *taken(float **room, npy_intp numbers) {
    float *at = *room;
    *room += whole_of(numbers, 16);
    return at;
}

/* The floats that `forward` and `backward` take, and a widened head. */
static npy_intp room_for(const Head *h) {
    npy_intp keys = whole_of(least(h->S, KEYS), STRIP);
    npy_intp D = whole_of(h->D, STRIP), E = whole_of(h->E, STRIP);
    return (keys + LONGEST) * 2 * (D + E)        /* strips */
           + 2 * sums_of(LONGEST, KEYS) * 2      /* scores, and rounded scores */
           + sums_of(h->T, h->D) + sums_of(h->T, h->E) + sums_of(LONGEST, h->E)
           + sums_of(KEYS, h->D) + sums_of(KEYS, h->E)
           + TILE * (KEYS + D + E) + 2 * E       /* a tile of A, two rows */
           + 2 * h->T + (h->T + h->S) * (D + E)  /* top and total, copies of q, dy, k and v */
           + 32 * 16;
}

/* The first query that sees key s. */
static npy_intp first_to_see(const Head *h, npy_intp s) {
    return h->first >= 0 && s > h->first ? s - h->first : 0;
}

/* How many of the n keys s, s + 1, ... a query sees. */
static npy_intp seen_by(const Head *h, npy_intp query, npy_intp s, npy_intp n) {
    npy_intp end = h->first + query + 1 - s;
    return h->first >= 0 && end < n ? end : n;
}

/* Joins y and total (both divided by e^top) with those of other keys. */
static void join(float *restrict y, const float *restrict sums, npy_intp E, float *top, float here,
                 float *total, float of_sums) {
    float most = *top < here ? here : *top, a = exp_of(*top - most), b = exp_of(here - most);
    for (npy_intp e = 0; e < E; e++) y[e] = y[e] * a + sums[e] * b;
    *total = *total * a + of_sums * b, *top = most;
}

/* Returns (m, n) scores as a side of a product; `rounded` has room for 16-bit scores. */
static Side as_side(const Way *way, const float *scores, npy_uint16 *rounded, npy_intp m,
                    npy_intp n) {
    if (!way->half) return (Side){scores, m, n, KEYS, 1};
    for (npy_intp i = 0; i < m; i++)
        round_to(way->half, scores + i * KEYS, rounded + i * KEYS, n);
    return (Side){rounded, m, n, KEYS, 1};
}

/* Replaces scores of m queries from t on with n keys from s on by p, with zeros up to `seen`. */
static void exponentials_of(const Head *h, npy_intp t, npy_intp m, npy_intp s, npy_intp n,
                            npy_intp seen, float *scores, float *top, float *total) {
    for (npy_intp i = 0; i < m; i++) {
        float *row = scores + i * KEYS;
        npy_intp own = seen_by(h, t + i, s, n);
        times(row, own, h->scale);
        total[i] = exponentials(row, row, own, top + i);
        for (npy_intp j = own; j < seen; j++) row[j] = 0;
    }
}

static void forward(const Head *h, float *room) {
    const Way *way = h->way;
    npy_intp keys = whole_of(least(h->S, KEYS), STRIP);
    npy_intp D = whole_of(h->D, STRIP), E = whole_of(h->E, STRIP);
    float *of_keys = taken(&room, keys * D), *of_values = taken(&room, keys * E);
    float *scores = taken(&room, sums_of(LONGEST, KEYS));
    float *tile = taken(&room, TILE * (KEYS + h->D));
    npy_uint16 *rounded = taken(&room, sums_of(LONGEST, KEYS));
    float *y = taken(&room, sums_of(h->T, h->E)), *more = taken(&room, sums_of(LONGEST, h->E));
    float *top = taken(&room, h->T), *total = taken(&room, h->T);
    for (npy_intp s = 0; s < h->S; s += KEYS) {
        npy_intp n = least(h->S - s, KEYS);
        way->pack(rows_of(h->of + K, s, n), of_keys);
        way->pack(turned(rows_of(h->of + V, s, n)), of_values);
        for (npy_intp t = first_to_see(h, s); t < h->T; t += way->rows) {
            npy_intp m = least(h->T - t, way->rows), seen = seen_by(h, t + m - 1, s, n);
            float here[LONGEST], of_more[LONGEST], *sums = s ? more : y + t * E;
            way->multiply(rows_of(h->of + Q, t, m), seen, of_keys, h->D, scores, KEYS, 0, tile);
            exponentials_of(h, t, m, s, n, seen, scores, s ? here : top + t,
                            s ? of_more : total + t);
            way->multiply(as_side(way, scores, rounded, m, seen), h->E, of_values, n, sums, E, 0,
                          tile);
            for (npy_intp i = 0; s && i < m; i++)
                join(y + (t + i) * E, sums + i * E, h->E, top + t + i, here[i], total + t + i,
                     of_more[i]);
        }
    }
    float *lse = h->of[LSE].at;
    for (npy_intp t = 0; t < h->T; t++) {
        times(y + t * E, h->E, 1 / total[t]);
        write_row(h->of + Y, t, y + t * E);
        lse[t] = top[t] + log_of(total[t]);
    }
}

/* Replaces `seen` values of p and dp by p and ds, and fills up with zeros to n. */
static void of_scores(float *restrict p, float *restrict dp, npy_intp seen, npy_intp n, float scale,
                      float lse, float delta) {
    for (npy_intp j = 0; j < seen; j++) {
        p[j] = exp_of(scale * p[j] - lse);
        dp[j] = p[j] * (dp[j] - delta) * scale;
    }
    for (npy_intp j = seen; j < n; j++) p[j] = dp[j] = 0;
}

/* sum(dy y) of each query, with room for two rows. */
static void dots(const Head *h, float *delta, float *rows) {
    for (npy_intp t = 0; t < h->T; t++) {
        const float *x = wide_row(h->of + DY, t, rows);
        const float *y = wide_row(h->of + Y, t, rows + whole_of(h->E, STRIP));
        float sum[LANES] = {0};
        EACH_LANE(h->E, sum[l] += x[i] * y[i]);
        delta[t] = sum_of_lanes(sum);
    }
}

/* Adds sums to rows of a matrix in float32. */
static void add_rows(const Matrix *x, npy_intp start, npy_intp rows, const float *sums) {
    for (npy_intp i = 0; i < rows; i++, sums += whole_of(x->width, STRIP)) {
        float *restrict to = row_of(x, start + i);
        for (npy_intp j = 0; j < x->width; j++) to[j] += sums[j];
    }
}

/* Writes dq, and adds to dk and dv. */
static void backward(const Head *h, float *room) {
    const Way *way = h->way;
    npy_intp keys = whole_of(least(h->S, KEYS), STRIP);
    npy_intp D = whole_of(h->D, STRIP), E = whole_of(h->E, STRIP);
    float *of_keys = taken(&room, keys * D), *of_values = taken(&room, keys * E);
    float *rows = taken(&room, keys * D); /* rows of keys */
    float *queries = taken(&room, LONGEST * D), *gradients = taken(&room, LONGEST * E);
    float *p = taken(&room, sums_of(LONGEST, KEYS)), *ds = taken(&room, sums_of(LONGEST, KEYS));
    npy_uint16 *of_16_bits = taken(&room, sums_of(LONGEST, KEYS));
    float *tile = taken(&room, TILE * (KEYS + h->D + h->E)), *delta = taken(&room, h->T);
    float *dq = taken(&room, sums_of(h->T, h->D)), *lse = h->of[LSE].at;
    float *dk = taken(&room, sums_of(KEYS, h->D)), *dv = taken(&room, sums_of(KEYS, h->E));
    dots(h, delta, taken(&room, 2 * E));
    for (npy_intp s = 0; s < h->S; s += KEYS) {
        npy_intp n = least(h->S - s, KEYS);
        way->pack(rows_of(h->of + K, s, n), of_keys);
        way->pack(rows_of(h->of + V, s, n), of_values);
        way->pack(turned(rows_of(h->of + K, s, n)), rows);
        memset(dk, 0, sums_of(n, h->D) * sizeof *dk), memset(dv, 0, sums_of(n, h->E) * sizeof *dv);
        for (npy_intp t = first_to_see(h, s); t < h->T; t += way->rows) {
            npy_intp m = least(h->T - t, way->rows), seen = seen_by(h, t + m - 1, s, n);
            Side q = rows_of(h->of + Q, t, m), dy = rows_of(h->of + DY, t, m);
            way->multiply(q, seen, of_keys, h->D, p, KEYS, 0, tile);
            way->multiply(dy, seen, of_values, h->E, ds, KEYS, 0, tile);
            for (npy_intp i = 0; i < m; i++)
                of_scores(p + i * KEYS, ds + i * KEYS, seen_by(h, t + i, s, n), seen, h->scale,
                          lse[t + i], delta[t + i]);
            Side of_p = as_side(way, p, of_16_bits, m, seen);
            Side of_ds = as_side(way, ds, of_16_bits + LONGEST * KEYS, m, seen);
            way->pack(turned(q), queries);
            way->pack(turned(dy), gradients);
            way->multiply(of_ds, h->D, rows, n, dq + t * D, D, s > 0, tile);
            way->multiply(turned(of_ds), h->D, queries, m, dk, D, 1, tile);
            way->multiply(turned(of_p), h->E, gradients, m, dv, E, 1, tile);
        }
        add_rows(h->of + DK, s, n, dk);
        add_rows(h->of + DV, s, n, dv);
    }
    for (npy_intp t = 0; t < h->T; t++) write_row(h->of + DQ, t, dq + t * D);
}

/* Returns a head with its factors widened to float32, if the products do not take its type. */
static Head widened(const Head *h, int arrays, float **room) {
    static const int MULTIPLIED[] = {Q, K, V, DY};
    Head found = *h;
    for (int k = 0; k < (arrays > DY ? 4 : 3); k++) {
        Matrix *x = found.of + MULTIPLIED[k], from = *x;
        if (from.half == h->way->half) continue;
        *x = (Matrix){taken(room, from.rows * from.width), from.rows, from.width, from.width, 0};
        for (npy_intp i = 0; i < from.rows; i++)
            widen(from.half, row_of(&from, i), row_of(x, i), from.width);
    }
    return found;
}

/* Computes all heads; arrays are in the order of the arguments. */
static void heads(Head *h, const Arguments *a, float *room) {
    npy_intp groups = SIZE(a, 'K'), G = SIZE(a, 'G');
    for (npy_intp i = 0; i < SIZE(a, 'N') * groups * G; i++) {
        for (int j = 0; j < a->arrays; j++) {
            int is_grouped = j != K && j != V && j != DK && j != DV;
            h->of[j].at = (char *)a->at[j] + a->array[j].itemsize *
                (i / G / groups * step(a, j, 0) + i / G % groups * step(a, j, 1) +
                 (is_grouped ? i % G * step(a, j, 2) : 0));
        }
        float *rest = room;
        Head one = widened(h, a->arrays, &rest);
        if (a->arrays == DY) forward(&one, rest);
        else backward(&one, rest);
    }
}

/* How products of these types are computed; NULL if they are not supported. */
static const Way *way(const Arguments *a) {
    int half = a->array[Q].half, is_back = a->arrays > DY;
    if (a->array[K].half != half || a->array[V].half != half || a->array[LSE].half) return NULL;
    if (is_back && (a->array[DY].half != half || a->array[DK].half || a->array[DV].half))
        return NULL;
    return way_of(half);
}

static int attention(Arguments *a) {
    Head h = {.way = way(a), .T = SIZE(a, 'T'), .S = SIZE(a, 'S'), .D = SIZE(a, 'D'),
              .E = SIZE(a, 'E'), .first = a->number[1], .scale = a->number[0]};
    if (!h.way) return NOT_MADE_FOR;
    for (int i = 0; i < a->arrays; i++) {
        int last = a->array[i].axes - 1;
        h.of[i] = (Matrix){NULL, size(a, i, last - 1), size(a, i, last), step(a, i, last - 1),
                           a->array[i].half};
    }
    without_gil(a, a->bytes);
    float *room = aligned_alloc(64, whole_of(room_for(&h) * sizeof *room, 64));
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
    HALVES(attention_loop, "f-NKGTD f-NKSD f-NKSE ~f-NKGTE ~f-NKGT # % 0 0"),
    HALVES(attention_gradient_loop, "f-NKGTD f-NKSD f-NKSE f-NKGTE f-NKGT f-NKGTE ~f-NKGTD "
                                    "=f-NKSD =f-NKSE # % 0 0"),
#endif
    END_OF_KERNELS,
};
