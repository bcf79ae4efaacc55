/* Winograd's transforms along one axis, for F(SIDE x SIDE, 3x3) with tiles of TILE = SIDE + 2.

   inputs      B' d    TILE pixels to TILE        pixels    B v    the transpose of inputs
   inverse     A' m    TILE to SIDE pixels        spread    A y    the transpose of inverse
   taps        G w     3 weights to TILE          untaps    G' u   the transpose of taps

   The matrices are those of addons/winograd/matrices.py. */

#if SIDE == 2
ALWAYS_INLINE void OF(inputs)(const float *d, float *v) {
    v[0] = d[0] - d[2], v[1] = d[1] + d[2], v[2] = d[2] - d[1], v[3] = d[1] - d[3];
}
ALWAYS_INLINE void OF(pixels)(const float *v, float *d) {
    d[0] = v[0], d[1] = v[1] - v[2] + v[3], d[2] = v[1] + v[2] - v[0], d[3] = -v[3];
}
ALWAYS_INLINE void OF(inverse)(const float *m, float *y) {
    y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] - m[3];
}
ALWAYS_INLINE void OF(spread)(const float *y, float *m) {
    m[0] = y[0], m[1] = y[0] + y[1], m[2] = y[0] - y[1], m[3] = -y[1];
}
ALWAYS_INLINE void OF(taps)(const float *w, float *u) {
    float s = w[0] + w[2];
    u[0] = w[0], u[1] = 0.5f * (s + w[1]), u[2] = 0.5f * (s - w[1]), u[3] = w[2];
}
ALWAYS_INLINE void OF(untaps)(const float *u, float *w) {
    float s = 0.5f * (u[1] + u[2]);
    w[0] = u[0] + s, w[1] = 0.5f * (u[1] - u[2]), w[2] = s + u[3];
}
#else /* the points 0, +-P, +-Q and infinity */
#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)
ALWAYS_INLINE void OF(inputs)(const float *d, float *v) {
    float a = d[4] - QQ * d[2], b = P * (d[3] - QQ * d[1]);
    float c = d[4] - PP * d[2], e = Q * (d[3] - PP * d[1]);
    v[0] = PP * QQ * d[0] - (PP + QQ) * d[2] + d[4], v[1] = a + b, v[2] = a - b;
    v[3] = c + e, v[4] = c - e, v[5] = PP * QQ * d[1] - (PP + QQ) * d[3] + d[5];
}
ALWAYS_INLINE void OF(pixels)(const float *v, float *d) {
    float s = v[1] + v[2], a = P * (v[1] - v[2]), t = v[3] + v[4], b = Q * (v[3] - v[4]);
    d[0] = PP * QQ * v[0], d[1] = PP * QQ * v[5] - QQ * a - PP * b;
    d[2] = -(PP + QQ) * v[0] - QQ * s - PP * t, d[3] = a + b - (PP + QQ) * v[5];
    d[4] = v[0] + s + t, d[5] = v[5];
}
ALWAYS_INLINE void OF(inverse)(const float *m, float *y) {
    float s = m[1] + m[2], a = P * (m[1] - m[2]), t = m[3] + m[4], b = Q * (m[3] - m[4]);
    y[0] = m[0] + s + t, y[1] = a + b, y[2] = PP * s + QQ * t, y[3] = PP * a + QQ * b + m[5];
}
ALWAYS_INLINE void OF(spread)(const float *y, float *m) {
    float a = y[0] + PP * y[2], b = P * (y[1] + PP * y[3]);
    float c = y[0] + QQ * y[2], e = Q * (y[1] + QQ * y[3]);
    m[0] = y[0], m[1] = a + b, m[2] = a - b, m[3] = c + e, m[4] = c - e, m[5] = y[3];
}
#define AT_P (0.5f / (PP * (PP - QQ)))
#define AT_Q (0.5f / (QQ * (QQ - PP)))
ALWAYS_INLINE void OF(taps)(const float *w, float *u) {
    float a = w[0] + PP * w[2], b = P * w[1], c = w[0] + QQ * w[2], e = Q * w[1];
    u[0] = w[0] * (1 / (PP * QQ)), u[1] = (a + b) * AT_P, u[2] = (a - b) * AT_P;
    u[3] = (c + e) * AT_Q, u[4] = (c - e) * AT_Q, u[5] = w[2];
}
ALWAYS_INLINE void OF(untaps)(const float *u, float *w) {
    float s = (u[1] + u[2]) * AT_P, a = P * ((u[1] - u[2]) * AT_P);
    float t = (u[3] + u[4]) * AT_Q, b = Q * ((u[3] - u[4]) * AT_Q);
    w[0] = u[0] * (1 / (PP * QQ)) + s + t, w[1] = a + b, w[2] = PP * s + QQ * t + u[5];
}
#undef AT_P
#undef AT_Q
#undef P
#undef Q
#undef PP
#undef QQ
#endif

/* Y = L X L' for X (N x N) at p[0 .. N*N), where `half` applies L along one axis. */
#define BOTH_AXES(half, N, M, x, y)                                                                \
    do {                                                                                           \
        float t[M][N];                                                                             \
        UNROLL for (int j = 0; j < N; j++) {                                            \
            float in[N], out[M];                                                                   \
            UNROLL for (int i = 0; i < N; i++) in[i] = x[i * N + j];                                      \
            half(in, out);                                                                         \
            UNROLL for (int i = 0; i < M; i++) t[i][j] = out[i];                                          \
        }                                                                                          \
        UNROLL for (int i = 0; i < M; i++) half(t[i], y + i * M);                                         \
    } while (0)

#define TILE (SIDE + 2)

/* V from the images: pixel (a, b) of each tile, zero outside of the image. `room` is for a tile. */
static void OF(tiles)(const Grid *q, const Tiles *t, float *images, const float *zeros,
                      float *room) {
    const npy_intp C = t->C, plane = t->half ? C : t->plane;
    for (npy_intp n = 0; n < q->n; n++)
        for (npy_intp i = 0; i < t->down; i++)
            for (npy_intp j = 0; j < t->across; j++) {
                const float *from[TILE * TILE];
                float *to = t->half ? room : tile(t, n, i, j);
                for (int a = 0; a < TILE; a++)
                    for (int b = 0; b < TILE; b++) {
                        const float *at = pixel(q, images, n, i * SIDE + a, j * SIDE + b);
                        from[a * TILE + b] = at ? at : zeros;
                    }
#pragma GCC ivdep
                for (npy_intp c = 0; c < C; c++) {
                    float x[TILE * TILE], y[TILE * TILE];
                    UNROLL for (int k = 0; k < TILE * TILE; k++) x[k] = from[k][c];
                    BOTH_AXES(OF(inputs), TILE, TILE, x, y);
                    UNROLL for (int k = 0; k < TILE * TILE; k++) to[k * plane + c] = y[k];
                }
                if (t->half) round_tile(t, TILE * TILE, room, tile(t, n, i, j));
            }
}

/* The transpose of `tiles`: each pixel gets the sum over the tiles that contain it. */
static void OF(images)(const Grid *q, const Tiles *t, float *images, float *unused) {
    const npy_intp C = t->C, plane = t->plane;
    for (npy_intp n = 0; n < q->n; n++)
        for (npy_intp h = 0; h < q->H; h++)
            for (npy_intp w = 0; w < q->W; w++)
                memset(pixel(q, images, n, h + q->pad, w + q->pad), 0, C * sizeof(float));
    for (npy_intp n = 0; n < q->n; n++)
        for (npy_intp i = 0; i < t->down; i++)
            for (npy_intp j = 0; j < t->across; j++) {
                float *to[TILE * TILE];
                const float *from = tile(t, n, i, j);
                for (int a = 0; a < TILE; a++)
                    for (int b = 0; b < TILE; b++) {
                        float *at = pixel(q, images, n, i * SIDE + a, j * SIDE + b);
                        to[a * TILE + b] = at ? at : unused;
                    }
#pragma GCC ivdep
                for (npy_intp c = 0; c < C; c++) {
                    float x[TILE * TILE], y[TILE * TILE];
                    UNROLL for (int k = 0; k < TILE * TILE; k++) x[k] = from[k * plane + c];
                    BOTH_AXES(OF(pixels), TILE, TILE, x, y);
                    UNROLL for (int k = 0; k < TILE * TILE; k++) to[k][c] += y[k];
                }
            }
}

/* The outputs of each tile, from its elements in all planes of M. */
static void OF(outputs)(const Tiles *t, const Outputs *q, float *room) {
    const npy_intp O = q->O, plane = t->plane;
    for (npy_intp n = 0; n < q->n; n++)
        for (npy_intp i = 0; i < t->down; i++)
            for (npy_intp j = 0; j < t->across; j++) {
                const float *M = tile(t, n, i, j);
#pragma GCC ivdep
                for (npy_intp o = 0; o < O; o++) {
                    float x[TILE * TILE], y[SIDE * SIDE];
                    UNROLL for (int k = 0; k < TILE * TILE; k++) x[k] = M[k * plane + o];
                    BOTH_AXES(OF(inverse), TILE, SIDE, x, y);
                    UNROLL for (int k = 0; k < SIDE * SIDE; k++) room[k * O + o] = y[k];
                }
                put_tile(q, n, i, j, SIDE, room);
            }
}

static void OF(gradients)(const Gradient *q, const Tiles *t, float *room) {
    const npy_intp O = q->O, plane = t->half ? O : t->plane;
    float *row = room + SIDE * SIDE * O, *rounded = row + O;
    for (npy_intp n = 0; n < q->n; n++)
        for (npy_intp i = 0; i < t->down; i++)
            for (npy_intp j = 0; j < t->across; j++) {
                float *M = t->half ? rounded : tile(t, n, i, j);
                take_tile(q, n, i, j, SIDE, room, row);
#pragma GCC ivdep
                for (npy_intp o = 0; o < O; o++) {
                    float x[SIDE * SIDE], y[TILE * TILE];
                    UNROLL for (int k = 0; k < SIDE * SIDE; k++) x[k] = room[k * O + o];
                    BOTH_AXES(OF(spread), SIDE, TILE, x, y);
                    UNROLL for (int k = 0; k < TILE * TILE; k++) M[k * plane + o] = y[k];
                }
                if (t->half) round_tile(t, TILE * TILE, rounded, tile(t, n, i, j));
            }
}

/* U of some weights: w is gathered, since its channels may be apart. */
static void OF(weights)(const Weights *s, const float *w, float *U) {
    for (npy_intp r = 0; r < s->rows; r++)
        for (npy_intp c = 0; c < s->C; c += GROUP) {
            npy_intp many = s->C - c < GROUP ? s->C - c : GROUP;
            float x[9][GROUP] = {{0}}, y[TILE * TILE][GROUP];
            for (int k = 0; k < 9; k++) {
                const float *from = w + k / 3 * s->w[0] + k % 3 * s->w[1] + r * s->w[2];
                for (npy_intp o = 0; o < many; o++) x[k][o] = from[(c + o) * s->w[3]];
            }
#pragma GCC ivdep
            for (int o = 0; o < GROUP; o++) {
                float d[9], e[TILE * TILE];
                UNROLL for (int k = 0; k < 9; k++) d[k] = x[k][o];
                BOTH_AXES(OF(taps), 3, TILE, d, e);
                UNROLL for (int k = 0; k < TILE * TILE; k++) y[k][o] = e[k];
            }
            for (int k = 0; k < TILE * TILE; k++)
                memcpy(U + k * s->plane + r * s->row + c, y[k], many * sizeof(float));
        }
}

/* The transpose of `weights`: dw has the nine weights of a pair of channels together. */
static void OF(unweights)(const Weights *s, const float *U, float *dw) {
    for (npy_intp r = 0; r < s->rows; r++)
        for (npy_intp c = 0; c < s->C; c += GROUP) {
            npy_intp many = s->C - c < GROUP ? s->C - c : GROUP;
            float x[TILE * TILE][GROUP] = {{0}}, y[9][GROUP];
            for (int k = 0; k < TILE * TILE; k++)
                memcpy(x[k], U + k * s->plane + r * s->row + c, many * sizeof(float));
#pragma GCC ivdep
            for (int o = 0; o < GROUP; o++) {
                float d[TILE * TILE], e[9];
                UNROLL for (int k = 0; k < TILE * TILE; k++) d[k] = x[k][o];
                BOTH_AXES(OF(untaps), TILE, 3, d, e);
                UNROLL for (int k = 0; k < 9; k++) y[k][o] = e[k];
            }
            for (npy_intp o = 0; o < many; o++)
                for (int k = 0; k < 9; k++) dw[(r * s->C + c + o) * 9 + k] = y[k][o];
        }
}

#undef TILE
