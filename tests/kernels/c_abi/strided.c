// Softmax attention over tensors of any strides, which are parameters, or fields of a structure of DLPack.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static int attend(const float *q, const float *k, const float *v, float *out, const int64_t *qs, const int64_t *ks,
                  const int64_t *vs, const int64_t *os, const int64_t *n, int64_t Sk, int64_t D, float scale) {
    float *p = malloc((Sk + 1) * sizeof(float));
    if (p == NULL) return 1;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++) {
                float top = -INFINITY, sum = 0;
                for (int64_t j = 0; j < Sk; j++) {
                    p[j] = 0;
                    for (int64_t d = 0; d < D; d++)
                        p[j] += q[b * qs[0] + h * qs[1] + i * qs[2] + d * qs[3]] *
                                k[b * ks[0] + h * ks[1] + j * ks[2] + d * ks[3]];
                    p[j] *= scale;
                    top = fmaxf(top, p[j]);
                }
                for (int64_t j = 0; j < Sk; j++) sum += p[j] = expf(p[j] - top);
                for (int64_t d = 0; d < n[3]; d++) {
                    float o = 0;
                    for (int64_t j = 0; j < Sk; j++) o += p[j] * v[b * vs[0] + h * vs[1] + j * vs[2] + d * vs[3]];
                    out[b * os[0] + h * os[1] + i * os[2] + d * os[3]] = o / sum;
                }
            }
    free(p);
    return 0;
}

int by_strides(const float *q, const float *k, const float *v, float *out, int64_t B, int64_t Hq, int64_t Sq,
               int64_t Sk, int64_t D, int64_t Dv, float scale, int64_t q_stride_B, int64_t q_stride_H,
               int64_t q_stride_S, int64_t k_stride_B, int64_t k_stride_H, int64_t k_stride_S, int64_t v_stride_B,
               int64_t v_stride_H, int64_t v_stride_S) {
    int64_t n[] = {B, Hq, Sq, Dv}, qs[] = {q_stride_B, q_stride_H, q_stride_S, 1},
            ks[] = {k_stride_B, k_stride_H, k_stride_S, 1}, vs[] = {v_stride_B, v_stride_H, v_stride_S, 1},
            os[] = {Hq * Sq * Dv, Sq * Dv, Dv, 1};
    return attend(q, k, v, out, qs, ks, vs, os, n, Sk, D, scale);
}

typedef struct {
    void *data;
    struct { int32_t device_type, device_id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

static int is_float32(const DLTensor *x) {
    return x->ndim == 4 && x->device.device_type == 1 && x->dtype.code == 2 && x->dtype.bits == 32 &&
           x->dtype.lanes == 1 && x->byte_offset == 0;
}

int by_structures(const DLTensor *q, const DLTensor *k, DLManagedTensor *v, DLTensor *out, float scale) {
    const DLTensor *values = &v->dl_tensor;
    if (!is_float32(q) || !is_float32(k) || !is_float32(values) || !is_float32(out)) return 2;
    if (v->deleter != NULL) return 3;
    return attend(q->data, k->data, values->data, out->data, q->strides, k->strides, values->strides, out->strides,
                  out->shape, k->shape[2], q->shape[3], scale);
}
