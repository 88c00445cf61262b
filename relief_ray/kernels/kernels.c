/* The layers of Backbone 1, forward and backward, the local optimizers and a client's way out, in float32.
 *
 * The order of every sum is written here: no compiler, processor or number of rows at a time changes a bit. A sum of
 * products runs over its terms one after the other, each added by a fused multiply-add; a dot product runs in eight
 * lanes, which are added up at its end as `lanes` says. Compilers must not contract (-ffp-contract=off).
 *
 * Shapes: B windows of C channels and T samples; Q = ceil(T / 2) steps after the first convolution, S = ceil(Q / 2) after
 * the second; P pooled steps. Rows of activations are padded to a multiple of eight channels, whose rest is zero (c1, c2),
 * and sequences by two steps of zeros at both ends: a convolution's columns are then runs of its input, no copies.
 */
#include <stdint.h>
#include <string.h>

#ifdef RELIEF_DOUBLE
typedef double R;
#else
typedef float R;
#endif
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define PUBLIC __attribute__((visibility("default")))

/* Eight numbers at a time, and the floating-point mode in which tiny numbers are kept and rounding is to nearest. */
#if defined(__AVX2__) && defined(__FMA__) && !defined(RELIEF_PLAIN)
#include <immintrin.h>
typedef __m256 V;
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SPLAT(x) _mm256_set1_ps(x)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUB(a, b) _mm256_sub_ps(a, b)
#define MUL(a, b) _mm256_mul_ps(a, b)
#define DIV(a, b) _mm256_div_ps(a, b)
#define ROOT(a) _mm256_sqrt_ps(a)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define WHERE(x, y) _mm256_and_ps(x, _mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_NLE_UQ))
INLINE R lanes(V v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
typedef unsigned Mode;
INLINE Mode mode_of(void) { return _mm_getcsr(); }
INLINE void set_mode(Mode m) { _mm_setcsr(m); }
#define USUAL 0x1f80u
#elif defined(__aarch64__) && !defined(RELIEF_PLAIN)
#include <arm_neon.h>
typedef struct { float32x4_t l, h; } V;
#define LOAD(p) ((V){vld1q_f32(p), vld1q_f32((p) + 4)})
#define STORE(p, v) (vst1q_f32(p, (v).l), vst1q_f32((p) + 4, (v).h))
#define SPLAT(x) ((V){vdupq_n_f32(x), vdupq_n_f32(x)})
#define BOTH(f, a, b) ((V){f((a).l, (b).l), f((a).h, (b).h)})
#define ADD(a, b) BOTH(vaddq_f32, a, b)
#define SUB(a, b) BOTH(vsubq_f32, a, b)
#define MUL(a, b) BOTH(vmulq_f32, a, b)
#define DIV(a, b) BOTH(vdivq_f32, a, b)
#define ROOT(a) ((V){vsqrtq_f32((a).l), vsqrtq_f32((a).h)})
#define FMA(a, b, c) ((V){vfmaq_f32((c).l, (a).l, (b).l), vfmaq_f32((c).h, (a).h, (b).h)})
INLINE float32x4_t where4(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcleq_f32(y, vdupq_n_f32(0))));
}
#define WHERE(x, y) BOTH(where4, x, y)
INLINE R lanes(V v) {
  float32x4_t four = vaddq_f32(v.l, v.h);
  float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
typedef uint64_t Mode;
INLINE Mode mode_of(void) { Mode m; __asm__ volatile("mrs %0, fpcr" : "=r"(m)); return m; }
INLINE void set_mode(Mode m) { __asm__ volatile("msr fpcr, %0" : : "r"(m)); }
#define USUAL 0u
#else /* plain C, for tests: the same bits, or with RELIEF_DOUBLE the same sums in double precision */
typedef struct { R x[8]; } V;
#define EIGHT(head, value) INLINE V head { V out; for (int q = 0; q < 8; q++) out.x[q] = value; return out; }
EIGHT(LOAD(const R *p), p[q])
EIGHT(SPLAT(R x), x)
EIGHT(ADD(V a, V b), a.x[q] + b.x[q])
EIGHT(SUB(V a, V b), a.x[q] - b.x[q])
EIGHT(MUL(V a, V b), a.x[q] * b.x[q])
EIGHT(DIV(V a, V b), a.x[q] / b.x[q])
EIGHT(ROOT(V a), _Generic(a.x[q], float: __builtin_sqrtf, double: __builtin_sqrt)(a.x[q]))
EIGHT(FMA(V a, V b, V c), _Generic(a.x[q], float: __builtin_fmaf, double: __builtin_fma)(a.x[q], b.x[q], c.x[q]))
EIGHT(WHERE(V a, V b), b.x[q] <= 0 ? 0 : a.x[q])
INLINE void STORE(R *p, V v) { memcpy(p, &v, sizeof v); }
INLINE R lanes(V v) {
  return ((v.x[0] + v.x[4]) + (v.x[2] + v.x[6])) + ((v.x[1] + v.x[5]) + (v.x[3] + v.x[7]));
}
typedef unsigned Mode;
INLINE Mode mode_of(void) { return 0; }
INLINE void set_mode(Mode m) { (void)m; }
#define USUAL 0u
#endif
INLINE void restore_mode(Mode *m) { set_mode(*m); }
#define USUAL_MODE __attribute__((cleanup(restore_mode))) Mode before = mode_of(); set_mode(USUAL)

INLINE long up8(long n) { return (n + 7) / 8 * 8; }
INLINE long less(long a, long b) { return a < b ? a : b; }
INLINE R fma1(R a, R b, R c) { R r[8]; STORE(r, FMA(SPLAT(a), SPLAT(b), SPLAT(c))); return r[0]; }

/* Matrix products ------------------------------------------------------------------------------------------------ */

/* How a product begins and ends: at zero, at a row that is added to all, or onto what is there; and a ReLU. */
enum { ZERO, BIAS, ONTO, RELU };
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH1(X) X(1) X(2) X(3) X(4) X(5) X(6)

/* c (rows x 16, or 8 without `two`) of at most twelve vectors: sum over k of a[i ra + k ka] b[k ldb ..], k ascending. */
INLINE void tile(const int rows, const int two, int how, long depth, const R *a, long ra, long ka, const R *b, long ldb,
                 const R *bias, R *c, long ldc) {
#define BEGIN(i) \
  const R *a##i = a + i * ra; \
  V x##i = how == ONTO && i < rows ? LOAD(c + i * ldc) : how == ZERO ? SPLAT(0) : LOAD(bias); \
  V y##i = !two ? SPLAT(0) : how == ONTO && i < rows ? LOAD(c + i * ldc + 8) : how == ZERO ? SPLAT(0) : LOAD(bias + 8);
#define TERM(i) if (i < rows) { V s = SPLAT(a##i[at]); x##i = FMA(s, u, x##i); if (two) y##i = FMA(s, v, y##i); }
#define END(i) if (i < rows) { \
    STORE(c + i * ldc, how == RELU ? WHERE(x##i, x##i) : x##i); \
    if (two) STORE(c + i * ldc + 8, how == RELU ? WHERE(y##i, y##i) : y##i); }
  EACH(BEGIN)
  for (long k = 0, at = 0; k < depth; k++, at += ka, b += ldb) {
    V u = LOAD(b), v = two ? LOAD(b + 8) : u;
    EACH(TERM)
  }
  EACH(END)
}

/* c (rows x columns): `tile` on all of it; columns is a multiple of eight. */
APART void product(int how, long rows, long columns, long depth, const R *a, long ra, long ka, const R *b, long ldb,
                   const R *bias, R *c, long ldc) {
#define TILE(n) case n: tile(n, 1, how, depth, a + i * ra, ra, ka, b, ldb, bias, c + i * ldc, ldc); break; \
  case -n: tile(n, 0, how, depth, a + i * ra, ra, ka, b, ldb, bias, c + i * ldc, ldc); break;
  for (long j = 0; j < columns; j += 16, b += 16, c += 16, bias += bias ? 16 : 0)
    for (long i = 0; i < rows; i += 6)
      switch ((columns - j > 8 ? 1 : -1) * less(rows - i, 6)) { EACH1(TILE) }
}

/* Local optimizers ----------------------------------------------------------------------------------------------- */

/* A step's numbers. `kind`: Adam, SGD with a velocity in `m`, SGD; `first`: moments are zero, and m and v are not read;
 * `kept`: they are written. */
enum { ADAM, VELOCITY, SGD };
typedef struct { int32_t kind, first, kept; R rate, keep1, new1, keep2, new2, root, eps, decay, shrink; } Rule;

/* g' = g + decay p, p' = shrink p; Adam: m = keep1 m + new1 g', v = keep2 v + new2 g'^2, p' - rate m / (sqrt(v) root + eps);
 * SGD: m = keep1 m + g', p' - rate m. */
INLINE void step8(const Rule *r, V g, R *p, R *m, R *v) {
  V old = LOAD(p), move = g = FMA(SPLAT(r->decay), old, g);
  old = MUL(SPLAT(r->shrink), old);
  if (r->kind != SGD) {
    if (r->kind == ADAM) move = MUL(SPLAT(r->new1), g);
    if (!r->first) move = FMA(SPLAT(r->keep1), LOAD(m), move);
    if (r->kept) STORE(m, move);
  }
  move = MUL(SPLAT(r->rate), move);
  if (r->kind == ADAM) {
    V squares = MUL(MUL(SPLAT(r->new2), g), g);
    if (!r->first) squares = FMA(SPLAT(r->keep2), LOAD(v), squares);
    if (r->kept) STORE(v, squares);
    move = DIV(move, FMA(ROOT(squares), SPLAT(r->root), SPLAT(r->eps)));
  }
  STORE(p, SUB(old, move));
}

/* n values of p take a step along g. */
INLINE void step_n(const Rule *r, long n, const R *g, R *p, R *m, R *v) {
  long i = 0;
  for (; i + 8 <= n; i += 8) step8(r, LOAD(g + i), p + i, m + i, v + i);
  R *to[3] = {p + i, m + i, v + i}, rest[4][8] = {{0}};
  const size_t bytes = (size_t)(n - i) * sizeof(R);
  if (!bytes) return;
  memcpy(rest[3], g + i, bytes);
  for (int q = 0; q < 3; q++) if (q <= 2 - r->kind && (!q || !r->first)) memcpy(rest[q], to[q], bytes);
  step8(r, LOAD(rest[3]), rest[0], rest[1], rest[2]);
  for (int q = 0; q < 3; q++) if (q <= 2 - r->kind && (!q || r->kept)) memcpy(to[q], rest[q], bytes);
}

PUBLIC void relief_step(const Rule *r, long n, const R *g, R *p, R *m, R *v) {
  USUAL_MODE;
  step_n(r, n, g, p, m, v);
}

/* Linear layers -------------------------------------------------------------------------------------------------- */

/* y (B, O) = bias (or zero) + h (B, N) w (O, N)^T; rows of h are ldh apart. */
INLINE void dots(const int rows, const int outs, long n, const R *h, long ldh, const R *w, const R *bias, R *y, long ldy) {
  V sum[12];
  for (int i = 0; i < rows * outs; i++) sum[i] = SPLAT(0);
  long k = 0;
  for (; k + 8 <= n; k += 8)
    for (int o = 0; o < outs; o++) {
      V u = LOAD(w + o * n + k);
      for (int i = 0; i < rows; i++) sum[o * rows + i] = FMA(LOAD(h + i * ldh + k), u, sum[o * rows + i]);
    }
  for (int o = 0; o < outs; o++)
    for (int i = 0; i < rows; i++) {
      R total = lanes(sum[o * rows + i]);
      for (long q = k; q < n; q++) total = fma1(h[i * ldh + q], w[o * n + q], total);
      y[i * ldy + o] = bias ? total + bias[o] : total;
    }
}

PUBLIC void relief_linear(long batch, long outputs, long n, const R *h, long ldh, const R *w, const R *bias, R *y) {
  USUAL_MODE;
#define DOTS(rows, outs) dots(rows, outs, n, h + i * ldh, ldh, w + o * n, bias ? bias + o : 0, y + i * outputs + o, outputs)
  for (long o = 0; o < outputs; o += o + 3 <= outputs ? 3 : 1)
    for (long i = 0; i < batch; i += i + 4 <= batch ? 4 : 1) {
      if (o + 3 <= outputs) { if (i + 4 <= batch) DOTS(4, 3); else DOTS(1, 3); }
      else if (i + 4 <= batch) DOTS(4, 1); else DOTS(1, 1);
    }
}

/* Sixteen columns from j on of x (rows, n), packed; those behind the last one are zero. */
INLINE void strip(long rows, long n, long j, const R *x, long ldx, R *out) {
  const long width = less(16, n - j);
  for (long i = 0; i < rows; i++, out += 16) {
    if (width == 16) { STORE(out, LOAD(x + i * ldx + j)); STORE(out + 8, LOAD(x + i * ldx + j + 8)); continue; }
    memset(out, 0, 16 * sizeof(R));
    memcpy(out, x + i * ldx + j, (size_t)width * sizeof(R));
  }
}

/* Backward of `relief_linear`: dh (B, N; rows of ldh, a multiple of 16) = g w, unless it is null; then w takes its step
 * along g^T h, six rows at a time, or dw gets the gradient where it is given. work: 16 max(O, (B + 6) ceil(N / 16)). */
PUBLIC void relief_linear_back(long batch, long outputs, long n, const R *g, const R *h, long ldh, R *w, R *dh, long lddh,
                               R *dw, const Rule *r, R *m, R *v, R *work) {
  USUAL_MODE;
  for (long j = 0; dh && j < n; j += 16) {
    strip(outputs, n, j, w, n, work);
    product(ZERO, batch, 16, outputs, g, outputs, 1, work, 16, 0, dh + j, lddh);
  }
  if (!dw && !r) return;
  const long wide = (n + 15) / 16 * 16;
  R *rows = work + wide * batch;
  for (long j = 0; j < n; j += 16) strip(batch, n, j, h, ldh, work + j * batch);
  for (long i = 0; i < outputs; i += 6) {
    const long num = less(6, outputs - i);
    for (long j = 0; j < n; j += 16) {
      for (long q = dw ? num : 0; q < num; q++) { /* on their way from memory while this tile is computed */
        const long at = (i + q) * n + j;
        __builtin_prefetch(w + at, 1);
        if (r->kind == ADAM && r->kept) { __builtin_prefetch(m + at, 1); __builtin_prefetch(v + at, 1); }
      }
      product(ZERO, num, 16, batch, g + i, 1, outputs, work + j * batch, 16, 0, rows + j, wide);
    }
    for (long q = 0; q < num; q++) {
      const long at = (i + q) * n;
      if (dw) memcpy(dw + at, rows + q * wide, (size_t)n * sizeof(R));
      else step_n(r, n, rows + q * wide, w + at, m + at, v + at);
    }
  }
}

/* Sums over the rows of g (B, O), row after row. */
PUBLIC void relief_columns(long batch, long outputs, const R *g, R *out) {
  USUAL_MODE;
  memset(out, 0, (size_t)outputs * sizeof(R));
  for (long i = 0; i < batch; i++, g += outputs) {
    long o = 0;
    for (; o + 8 <= outputs; o += 8) STORE(out + o, ADD(LOAD(out + o), LOAD(g + o)));
    for (; o < outputs; o++) out[o] += g[o];
  }
}

/* Convolutions: kernel 5, stride 2, padding 2 -------------------------------------------------------------------- */

/* Weights (outs, ins, 5) as rows of columns: out[(k ins' + i) outs' + o]; ins' = ins or padded, outs' padded. */
INLINE void pack(long outs, long ins, long padded, const R *w, R *out) {
  const long wide = up8(outs);
  memset(out, 0, (size_t)(5 * padded * wide) * sizeof(R));
  for (long k = 0; k < 5; k++)
    for (long i = 0; i < ins; i++)
      for (long o = 0; o < outs; o++) out[(k * padded + i) * wide + o] = w[(o * ins + i) * 5 + k];
}
INLINE void unpack(long outs, long ins, long padded, const R *in, R *w) {
  const long wide = up8(outs);
  for (long o = 0; o < outs; o++)
    for (long i = 0; i < ins; i++)
      for (long k = 0; k < 5; k++) w[(o * ins + i) * 5 + k] = in[(k * padded + i) * wide + o];
}
/* For the gradient by the input: the same weights by output, in the order in which steps meet an even or an odd sample. */
INLINE void pack_back(long outs, long ins, const R *w, R *even, R *odd) {
  const long in8 = up8(ins), out8 = up8(outs);
  memset(even, 0, (size_t)(3 * out8 * in8) * sizeof(R));
  memset(odd, 0, (size_t)(2 * out8 * in8) * sizeof(R));
  for (long o = 0; o < outs; o++)
    for (long i = 0; i < ins; i++)
      for (long k = 0; k < 5; k++)
        (k % 2 ? odd : even)[((k % 2 ? (3 - k) / 2 : (4 - k) / 2) * out8 + o) * in8 + i] = w[(o * ins + i) * 5 + k];
}
INLINE void pad_row(long outs, const R *bias, R *row) {
  memset(row, 0, (size_t)up8(outs) * sizeof(R));
  memcpy(row, bias, (size_t)outs * sizeof(R));
}

/* y1 (B, Q + 4, c1) = ReLU(conv(x)), two steps of zeros at both ends; x: rows of windows (T + 4, C), padded likewise;
 * rows: which of them, null: the first B. work: (5 C + 1) c1 values. */
PUBLIC void relief_conv1(long batch, long samples, long channels, long outs, const R *x, const int64_t *rows, const R *w,
                         const R *bias, R *y, R *work) {
  USUAL_MODE;
  const long steps = (samples + 1) / 2, wide = up8(outs), depth = 5 * channels, pad = 2 * wide;
  R *row = work + depth * wide;
  pack(outs, channels, channels, w, work);
  pad_row(outs, bias, row);
  for (long b = 0; b < batch; b++, y += (steps + 4) * wide) {
    const R *window = x + (rows ? rows[b] : b) * (samples + 4) * channels;
    memset(y, 0, (size_t)pad * sizeof(R));
    memset(y + pad + steps * wide, 0, (size_t)pad * sizeof(R));
    product(RELU, steps, wide, depth, window, 2 * channels, 1, work, wide, row, y + pad, wide);
  }
}

/* The steps [from, to) that the p-th of P pooled steps is the mean of. */
INLINE long from(long p, long steps, long pooled) { return p * steps / pooled; }
INLINE long to(long p, long steps, long pooled) { return ((p + 1) * steps + pooled - 1) / pooled; }

/* y2 (B, S, c2) = ReLU(conv(y1)) and its means over time f (B, C2 P; rows of ldf), channel after channel.
 * keep: whether y2 is kept for all windows. work: (5 c1 + 1) c2 values. */
PUBLIC void relief_conv2(long batch, long samples, long ins, long outs, long pooled, const R *y1, const R *w, const R *bias,
                         R *y2, int keep, R *f, long ldf, R *work) {
  USUAL_MODE;
  const long steps = (samples + 1) / 2, in8 = up8(ins), wide = up8(outs);
  R *row = work + 5 * in8 * wide;
  pack(outs, ins, in8, w, work);
  pad_row(outs, bias, row);
  for (long b = 0; b < batch; b++, y1 += (samples + 4) * in8, f += ldf, y2 += keep ? steps * wide : 0) {
    product(RELU, steps, wide, 5 * in8, y1, 2 * in8, 1, work, wide, row, y2, wide);
    for (long p = 0; p < pooled; p++) {
      const long first = from(p, steps, pooled), last = to(p, steps, pooled);
      for (long o = 0; o < outs; o++) {
        R sum = y2[first * wide + o];
        for (long t = first + 1; t < last; t++) sum += y2[t * wide + o];
        f[o * pooled + p] = last - first == 2 ? sum * (R)0.5 : sum / (R)(last - first);
      }
    }
  }
}

/* Backward of `relief_conv2`: dw, db, and dy1 (B, Q, c1) unless it is null, from df (B; rows of ldf).
 * work: (5 c1 + S + 4 + 5 c1) c2 values. */
PUBLIC void relief_conv2_back(long batch, long samples, long ins, long outs, long pooled, const R *df, long ldf,
                              const R *y2, const R *y1, const R *w, R *dw, R *db, R *dy1, R *work) {
  USUAL_MODE;
  const long steps = (samples + 1) / 2, in8 = up8(ins), wide = up8(outs);
  R *sums = work, *bias = sums + 5 * in8 * wide, *g = bias + wide, *even = g + (steps + 2) * wide;
  R *odd = even + 3 * wide * in8;
  memset(work, 0, (size_t)((5 * in8 + 1 + steps + 2) * wide) * sizeof(R));
  if (dy1) pack_back(outs, ins, w, even, odd);
  for (long b = 0; b < batch; b++, df += ldf, y2 += steps * wide, y1 += (samples + 4) * in8) {
    memset(g + wide, 0, (size_t)(steps * wide) * sizeof(R));
    for (long p = 0; p < pooled; p++) {
      const long first = from(p, steps, pooled), last = to(p, steps, pooled);
      const R share = (R)1 / (R)(last - first);
      for (long t = first; t < last; t++)
        for (long o = 0; o < outs; o++) g[(t + 1) * wide + o] += df[o * pooled + p] * share;
    }
    for (long i = 0; i < steps * wide; i += 8) STORE(g + wide + i, WHERE(LOAD(g + wide + i), LOAD(y2 + i)));
    for (long t = 0; t < steps; t++)
      for (long o = 0; o < wide; o += 8) STORE(bias + o, ADD(LOAD(bias + o), LOAD(g + (t + 1) * wide + o)));
    product(ONTO, 5 * in8, wide, steps, y1, 1, 2 * in8, g + wide, wide, 0, sums, wide);
    if (!dy1) continue;
    product(ZERO, steps, in8, 3 * wide, g, wide, 1, even, in8, 0, dy1, 2 * in8);
    product(ZERO, samples / 2, in8, 2 * wide, g + wide, wide, 1, odd, in8, 0, dy1 + in8, 2 * in8);
    dy1 += samples * in8;
  }
  unpack(outs, ins, in8, sums, dw);
  memcpy(db, bias, (size_t)outs * sizeof(R));
}

/* Backward of `relief_conv1`: dw and db from dy1 (B, Q, c1), which is masked in place. work: (5 C + 1) c1 values. */
PUBLIC void relief_conv1_back(long batch, long samples, long channels, long outs, R *dy1, const R *y1, const R *x,
                              const int64_t *rows, R *dw, R *db, R *work) {
  USUAL_MODE;
  const long steps = (samples + 1) / 2, wide = up8(outs), depth = 5 * channels;
  R *bias = work + depth * wide;
  memset(work, 0, (size_t)((depth + 1) * wide) * sizeof(R));
  for (long b = 0; b < batch; b++, dy1 += steps * wide) {
    const R *y = y1 + (b * (steps + 4) + 2) * wide;
    for (long t = 0; t < steps; t++)
      for (long o = 0; o < wide; o += 8) {
        V g = WHERE(LOAD(dy1 + t * wide + o), LOAD(y + t * wide + o));
        STORE(dy1 + t * wide + o, g);
        STORE(bias + o, ADD(LOAD(bias + o), g));
      }
    product(ONTO, depth, wide, steps, x + (rows ? rows[b] : b) * (samples + 4) * channels, 1, 2 * channels, dy1, wide, 0,
            work, wide);
  }
  unpack(outs, channels, channels, work, dw);
  memcpy(db, bias, (size_t)outs * sizeof(R));
}

/* Fusion, loss, way out ------------------------------------------------------------------------------------------ */

/* y = ReLU(first + bias, then the other blocks one after the other); each block has B x O values. */
PUBLIC void relief_fuse(long batch, long outputs, long blocks, const R *const *block, const R *bias, R *y) {
  USUAL_MODE;
  for (long i = 0; i < batch; i++)
    for (long o = 0; o < outputs; o++) {
      R sum = block[0][i * outputs + o] + bias[o];
      for (long q = 1; q < blocks; q++) sum += block[q][i * outputs + o];
      y[i * outputs + o] = sum <= 0 ? 0 : sum;
    }
}

/* g where y > 0, and the sums of its rows' columns. */
PUBLIC void relief_fuse_back(long batch, long outputs, const R *g, const R *y, R *masked, R *db) {
  for (long i = 0; i < batch * outputs; i++) masked[i] = y[i] <= 0 ? 0 : g[i];
  relief_columns(batch, outputs, masked, db);
}

/* e^x for x <= 0 and ln(s) for s >= 1, in double precision, by series that are exact to its last places. */
INLINE double exp1(double x) {
  if (x < -700) return 0;
  const long n = (long)(x * 1.4426950408889634 - 0.5);
  const double r = (x - (double)n * 6.93147180369123816490e-01) - (double)n * 1.90821492927058770002e-10;
  double sum = 1;
  for (int q = 14; q >= 1; q--) sum = 1 + sum * r / q;
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return sum * power;
}
INLINE double ln1(double s) {
  uint64_t bits;
  memcpy(&bits, &s, sizeof bits);
  long n = (long)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
  memcpy(&s, &bits, sizeof s);
  if (s > 1.4142135623730951) { s /= 2; n++; }
  const double z = (s - 1) / (s + 1);
  double sum = 0;
  for (int q = 23; q >= 1; q -= 2) sum = sum * z * z + 1.0 / q;
  return (double)n * 0.69314718055994531 + 2 * z * sum;
}

/* Mean cross-entropy of logits (B, K) at labels (B,); g gets its gradient unless it is null. */
PUBLIC double relief_loss(long batch, long classes, const R *logits, const int64_t *labels, R *g) {
  USUAL_MODE;
  double loss = 0;
  for (long i = 0; i < batch; i++, logits += classes) {
    double most = logits[0], sum = 0;
    for (long k = 1; k < classes; k++) most = most < (double)logits[k] || most != most ? (double)logits[k] : most;
    for (long k = 0; k < classes; k++) sum += exp1((double)logits[k] - most);
    loss += ln1(sum) - ((double)logits[labels[i]] - most);
    for (long k = 0; g && k < classes; k++)
      *g++ = (R)((exp1((double)logits[k] - most) / sum - (k == labels[i])) / (double)batch);
  }
  return loss / (double)batch;
}

#ifndef RELIEF_DOUBLE
/* A client's way out: local (n) becomes local - start; returns the sum of its squares in eight lanes of doubles, which is
 * not finite where a value is not. */
PUBLIC double relief_leave(long n, const float *local, const float *start, float *delta) {
  USUAL_MODE;
  double lane[8] = {0};
  long i = 0;
  for (; i + 8 <= n; i += 8)
    for (int q = 0; q < 8; q++) {
      const float d = local[i + q] - start[i + q];
      delta[i + q] = d;
      lane[q] += (double)d * (double)d;
    }
  for (int q = 0; i < n; i++, q++) {
    delta[i] = local[i] - start[i];
    lane[q] += (double)delta[i] * (double)delta[i];
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* total += weight delta, in double precision; then the next client's model is loaded in the delta's place. */
PUBLIC void relief_add(long n, double weight, const float *delta, double *total, const float *start, float *local) {
  USUAL_MODE;
  for (long i = 0; i < n; i++) {
    total[i] += weight * (double)delta[i];
    if (start) local[i] = start[i];
  }
}
#endif
