// Softmax attention over row-major tensors [B, S, H, D], with every option that a C function may be passed.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

int options(const double *q, const double *k, const double *v, double *out, double *lse, const bool *mask,
            const double *bias, const double *alibi_slopes, const double *sinks, const bool *dropout_keep,
            const int64_t *seqused_q, const int64_t *seqused_k, const int64_t *leftpad_k, int B, int Hq, int Hkv, int Sq,
            int Sk, int D, int Dv, double scale, double softcap, double dropout_p, int causal, int64_t window_left,
            int64_t window_right, int64_t window_sinks, int64_t attention_chunk) {
    double *p = malloc((Sk + 1) * sizeof(double));
    if (p == NULL) return 1;
    for (int64_t row = 0; row < (int64_t)B * Hq * Sq; row++) {
        int64_t b = row / ((int64_t)Hq * Sq), h = row / Sq % Hq, i = row % Sq, kv = h / (Hq / Hkv);
        int64_t queries = seqused_q ? seqused_q[b] : Sq, keys = seqused_k ? seqused_k[b] : Sk;
        int64_t pad = leftpad_k ? leftpad_k[b] : 0;
        const double *qi = q + ((b * Sq + i) * Hq + h) * D;
        double *o = out + ((b * Sq + i) * Hq + h) * Dv;
        double top = sinks ? sinks[h] : -INFINITY, sum = 0;
        for (int64_t j = 0; j < Sk; j++) {
            const double *kj = k + ((b * Sk + j) * Hkv + kv) * D;
            int64_t place = i + pad, distance = j - place;
            bool inside = window_left < 0 || distance >= -window_left || j - pad < window_sinks;
            inside &= window_right < 0 || distance <= window_right;
            inside &= !causal || distance <= 0;
            inside &= !attention_chunk || (j - pad) / attention_chunk == i / attention_chunk;
            inside &= i < queries && j >= pad && j < keys && (!mask || mask[row * Sk + j]);
            p[j] = -INFINITY;
            if (!inside) continue;
            double s = 0;
            for (int64_t d = 0; d < D; d++) s += qi[d] * kj[d];
            s *= scale;
            if (softcap != 0) s = softcap * tanh(s / softcap);
            if (bias) s += bias[row * Sk + j];
            if (alibi_slopes) s -= alibi_slopes[b * Hq + h] * fabs((double)distance);
            p[j] = s;
            top = fmax(top, s);
        }
        double reference = top == -INFINITY ? 0 : top;
        if (sinks) sum = exp(sinks[h] - reference);
        for (int64_t j = 0; j < Sk; j++) sum += p[j] = exp(p[j] - reference);
        for (int64_t d = 0; d < Dv; d++) {
            double total = 0;
            for (int64_t j = 0; j < Sk; j++) {
                double weight = p[j];
                if (dropout_keep) weight *= dropout_keep[row * Sk + j] ? 1 / (1 - dropout_p) : 0;
                if (weight != 0) total += weight * v[((b * Sk + j) * Hkv + kv) * Dv + d];
            }
            o[d] = sum == 0 ? 0 : total / sum;
        }
        lse[row] = sum == 0 ? -INFINITY : reference + log(sum);
    }
    free(p);
    return 0;
}
