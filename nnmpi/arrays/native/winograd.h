/* Winograd's transforms along one axis, for F(SIDE x SIDE, 3x3) with tiles of TILE = SIDE + 2.

   inputs      B' d    TILE pixels to TILE        pixels    B v    the transpose of inputs
   inverse     A' m    TILE to SIDE pixels        spread    A y    the transpose of inverse

   The matrices are those of kernels/winograd.py. */

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

#undef TILE
