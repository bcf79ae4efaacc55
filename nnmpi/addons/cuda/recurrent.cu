/* Steps of recurrent layers, as kernels/recurrent.py describes them. States have n elements in rows
   of H; gates of a row are side by side, so that gate k of element i is at GATE(k). */
#define GATES(count) unsigned long long first = AT(i / H, (count) * H) + i % H
#define GATE(k) (first + AT(k, H))
#define SIGMOID_GRADIENT(g, y) ((g) * (y) * (1.0f - (y)))
#define TANH_GRADIENT(g, y) ((g) * (1.0f - (y) * (y)))

KERNEL lstm(T *z, const T *u, T *cells, T *squashed, T *h, T *c, unsigned n, unsigned H) {
    EACH(i, n) {
        GATES(4);
        float v[4], before = LOAD(c[i]);
        for (unsigned k = 0; k < 4; k++) v[k] = LOAD(u[GATE(k)]) + LOAD(z[GATE(k)]);
        for (unsigned k = 0; k < 4; k++) v[k] = k == 2 ? tanhf(v[k]) : sigmoid(v[k]);
        for (unsigned k = 0; k < 4; k++) z[GATE(k)] = ROUND(v[k]);
        float now = before * v[1] + v[0] * v[2], s = tanhf(now);
        cells[i] = ROUND(before);
        c[i] = ROUND(now);
        squashed[i] = ROUND(s);
        h[i] = ROUND(v[3] * s);
    }
}

KERNEL lstm_gradient(T *dh, T *dc, const T *z, const T *cells, const T *squashed, T *d, unsigned n,
                     unsigned H) {
    EACH(i, n) {
        GATES(4);
        float v[4], g = LOAD(dh[i]), s = LOAD(squashed[i]);
        for (unsigned k = 0; k < 4; k++) v[k] = LOAD(z[GATE(k)]);
        float of_c = LOAD(dc[i]) + TANH_GRADIENT(g * v[3], s);
        d[GATE(0)] = ROUND(SIGMOID_GRADIENT(of_c * v[2], v[0]));
        d[GATE(1)] = ROUND(SIGMOID_GRADIENT(of_c * LOAD(cells[i]), v[1]));
        d[GATE(2)] = ROUND(TANH_GRADIENT(of_c * v[0], v[2]));
        d[GATE(3)] = ROUND(SIGMOID_GRADIENT(g * s, v[3]));
        dc[i] = ROUND(of_c * v[1]);
        dh[i] = ROUND(0.0f);
    }
}

KERNEL gru(T *z, const T *u, T *hidden, T *off, T *h, unsigned n, unsigned H) {
    EACH(i, n) {
        GATES(3);
        float inner = LOAD(u[GATE(2)]);
        float r = sigmoid(LOAD(u[GATE(0)]) + LOAD(z[GATE(0)]));
        float t = sigmoid(LOAD(u[GATE(1)]) + LOAD(z[GATE(1)]));
        float v = tanhf(r * inner + LOAD(z[GATE(2)])), apart = LOAD(h[i]) - v;
        z[GATE(0)] = ROUND(r);
        z[GATE(1)] = ROUND(t);
        z[GATE(2)] = ROUND(v);
        hidden[i] = ROUND(inner);
        off[i] = ROUND(apart);
        h[i] = ROUND(t * apart + v);
    }
}

KERNEL gru_gradient(T *dh, const T *z, const T *hidden, const T *off, T *d, T *e, unsigned n,
                    unsigned H) {
    EACH(i, n) {
        GATES(3);
        float g = LOAD(dh[i]), r = LOAD(z[GATE(0)]), t = LOAD(z[GATE(1)]), v = LOAD(z[GATE(2)]);
        float kept = g * t, of_v = TANH_GRADIENT(g - kept, v);
        d[GATE(0)] = e[GATE(0)] = ROUND(SIGMOID_GRADIENT(of_v * LOAD(hidden[i]), r));
        d[GATE(1)] = e[GATE(1)] = ROUND(SIGMOID_GRADIENT(g * LOAD(off[i]), t));
        d[GATE(2)] = ROUND(of_v);
        e[GATE(2)] = ROUND(of_v * r);
        dh[i] = ROUND(kept);
    }
}
