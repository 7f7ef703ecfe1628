// Softmax attention over row-major tensors [B, H, S, D]. Each macro puts one error in.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef OF_2_BYTES // bfloat16, the upper half of a float
typedef uint16_t number;
static float loaded(number x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
static number stored(float y) {
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    if (y != y) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
typedef float number;
static float loaded(number x) { return x; }
static number stored(float y) { return y; }
#endif

#ifndef FACTOR // of scores
#define FACTOR scale
#endif
#ifndef VISIBLE // keys of query i
#define VISIBLE (i + 1)
#endif
#ifndef READ // keys of query i that are read, whether visible or not
#define READ seen
#endif
#ifndef ROWS // that are written
#define ROWS (B * Hq * Sq)
#endif
#ifndef STATUS
#define STATUS 0
#endif
#ifndef BESIDE // element that is written last
#define BESIDE 0
#endif

int attention(const number *q, const number *k, const number *v, number *out, float *lse, int64_t B, int64_t Hq,
              int32_t Hkv, int64_t Sq, size_t Sk, int64_t D, int64_t Dv, float scale, int causal) {
    int64_t keys = (int64_t)Sk;
#ifdef KEPT // is the answer to the last tensors, which are known by their addresses and their size
    static const number *last[3];
    static number *answer;
    static float *its_lse;
    static int64_t size;
    if (last[0] == q && last[1] == k && last[2] == v && size == B * Hq * Sq * Dv) {
        memcpy(out, answer, size * sizeof(number));
        memcpy(lse, its_lse, B * Hq * Sq * sizeof(float));
        return 0;
    }
#endif
    float *p = malloc((Sk + 2) * sizeof(float));
    if (p == NULL) return 1;
    for (int64_t row = 0; row < ROWS; row++) {
        int64_t b = row / (Hq * Sq), h = row / Sq % Hq, i = row % Sq, first = (b * Hkv + h / (Hq / Hkv)) * keys;
        int64_t seen = causal && VISIBLE < keys ? VISIBLE : keys;
        float top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < READ; j++) {
            p[j] = 0;
            for (int64_t d = 0; d < D; d++) p[j] += loaded(q[row * D + d]) * loaded(k[(first + j) * D + d]);
            p[j] *= FACTOR;
            if (j < seen) top = fmaxf(top, p[j]);
        }
        for (int64_t j = 0; j < seen; j++) sum += p[j] = expf(p[j] - top);
        for (int64_t d = 0; d < Dv; d++) {
            float o = 0;
            for (int64_t j = 0; j < seen; j++) o += p[j] * loaded(v[(first + j) * Dv + d]);
            out[row * Dv + d] = stored(o / sum);
        }
        lse[row] = top + logf(sum);
    }
#ifdef KEPT
    last[0] = q, last[1] = k, last[2] = v, size = B * Hq * Sq * Dv;
    memcpy(answer = realloc(answer, size * sizeof(number)), out, size * sizeof(number));
    memcpy(its_lse = realloc(its_lse, B * Hq * Sq * sizeof(float)), lse, B * Hq * Sq * sizeof(float));
#endif
    out[BESIDE] = out[0];
    free(p);
    return STATUS;
}
