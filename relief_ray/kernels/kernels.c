/* The layers of Backbone 1, forward and backward, the local optimizers and a client's way out, in float32.
 *
 * The order of every sum is written here: no compiler, processor or number of rows at a time changes a bit. A sum of
 * products runs over its terms one after the other, each added by a fused multiply-add; a dot product runs in eight
 * lanes, which are added up at its end as `lanes` says. Compilers must not contract (-ffp-contract=off). Numbers below
 * 2^-126 count as zero, whatever the caller's mode is. Late in training gradients and their squares are that small, and
 * a processor takes about ten times as long for them. The squared norm alone counts them.
 *
 * Shapes: B windows of C channels and T samples; Q = ceil(T / 2) steps after the first convolution, S = ceil(Q / 2)
 * after the second; P pooled steps. Activations are time-major, their channels padded to a multiple of eight by zeros
 * (c1, c2), and sequences by two steps of zeros at both ends: a convolution's columns are then runs of its input. */
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

/* Eight numbers at a time; WHERE(x, y): x where y is not <= 0, else 0. */
#if defined(__AVX2__) && defined(__FMA__) && !defined(RELIEF_PLAIN)
#include <immintrin.h>
typedef __m256 V;
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPLAT _mm256_set1_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define MUL _mm256_mul_ps
#define DIV _mm256_div_ps
#define ROOT _mm256_sqrt_ps
#define FMA _mm256_fmadd_ps
#define WHERE(x, y) _mm256_and_ps(x, _mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_NLE_UQ))
INLINE R lanes(V v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#elif defined(__aarch64__) && !defined(RELIEF_PLAIN)
#include <arm_neon.h>
typedef struct { float32x4_t l, h; } V;
#define PAIR(name, f) INLINE V name(V a, V b) { return (V){f(a.l, b.l), f(a.h, b.h)}; }
INLINE float32x4_t where4(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcleq_f32(y, vdupq_n_f32(0))));
}
PAIR(ADD, vaddq_f32) PAIR(SUB, vsubq_f32) PAIR(MUL, vmulq_f32) PAIR(DIV, vdivq_f32) PAIR(WHERE, where4)
INLINE V LOAD(const R *p) { return (V){vld1q_f32(p), vld1q_f32(p + 4)}; }
INLINE void STORE(R *p, V v) { vst1q_f32(p, v.l); vst1q_f32(p + 4, v.h); }
INLINE V SPLAT(R x) { return (V){vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE V ROOT(V a) { return (V){vsqrtq_f32(a.l), vsqrtq_f32(a.h)}; }
INLINE V FMA(V a, V b, V c) { return (V){vfmaq_f32(c.l, a.l, b.l), vfmaq_f32(c.h, a.h, b.h)}; }
INLINE R lanes(V v) {
  float32x4_t four = vaddq_f32(v.l, v.h);
  float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
#else /* plain C, for tests: the same bits, or with RELIEF_DOUBLE the same sums in double precision */
typedef struct { R x[8]; } V;
#define EIGHT(head, value) INLINE V head { V out; for (int q = 0; q < 8; q++) out.x[q] = value; return out; }
#define OF(name, x) _Generic(x, float: __builtin_##name##f, double: __builtin_##name)
EIGHT(LOAD(const R *p), p[q]) EIGHT(SPLAT(R x), x) EIGHT(WHERE(V a, V b), b.x[q] <= 0 ? 0 : a.x[q])
EIGHT(ADD(V a, V b), a.x[q] + b.x[q]) EIGHT(SUB(V a, V b), a.x[q] - b.x[q])
EIGHT(MUL(V a, V b), a.x[q] * b.x[q]) EIGHT(DIV(V a, V b), a.x[q] / b.x[q])
EIGHT(ROOT(V a), OF(sqrt, a.x[q])(a.x[q])) EIGHT(FMA(V a, V b, V c), OF(fma, a.x[q])(a.x[q], b.x[q], c.x[q]))
INLINE void STORE(R *p, V v) { memcpy(p, &v, sizeof v); }
INLINE R lanes(V v) { return ((v.x[0] + v.x[4]) + (v.x[2] + v.x[6])) + ((v.x[1] + v.x[5]) + (v.x[3] + v.x[7])); }
#endif
/* Sixteen, side by side: one register of AVX-512, and with it more rows of a tile; else two of eight. */
#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(RELIEF_PLAIN)
typedef __m512 W;
#define PAIRED 1
#define LOAD16 _mm512_loadu_ps
#define STORE16 _mm512_storeu_ps
#define SPLAT16 _mm512_set1_ps
#define FMA16 _mm512_fmadd_ps
#define WHERE16(x, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ), x)
#define EACH(X, ...) X(0, __VA_ARGS__) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) \
  X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) \
  X(11, __VA_ARGS__)
enum { ROWS = 12 };
#else
typedef struct { V l, h; } W;
#define PAIRED 0
INLINE W LOAD16(const R *p) { return (W){LOAD(p), LOAD(p + 8)}; }
INLINE void STORE16(R *p, W v) { STORE(p, v.l); STORE(p + 8, v.h); }
INLINE W SPLAT16(R x) { return (W){SPLAT(x), SPLAT(x)}; }
INLINE W FMA16(W a, W b, W c) { return (W){FMA(a.l, b.l, c.l), FMA(a.h, b.h, c.h)}; }
INLINE W WHERE16(W x, W y) { return (W){WHERE(x.l, y.l), WHERE(x.h, y.h)}; }
#define EACH(X, ...) X(0, __VA_ARGS__) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) \
  X(5, __VA_ARGS__)
enum { ROWS = 6 };
#endif

#if defined(__aarch64__)
#define GET_MODE(m) __asm__ volatile("mrs %0, fpcr" : "=r"(m))
#define SET_MODE(m) __asm__ volatile("msr fpcr, %0" : : "r"(m))
enum { EXACT = 0, FLUSHED = 1 << 24 };
#else
#include <xmmintrin.h>
#define GET_MODE(m) m = _mm_getcsr()
#define SET_MODE(m) _mm_setcsr((unsigned)(m))
enum { EXACT = 0x1f80, FLUSHED = 0x9fc0 };
#endif
INLINE void restore_mode(uint64_t *m) { SET_MODE(*m); }
#define MODE(m) __attribute__((cleanup(restore_mode))) uint64_t before; GET_MODE(before); SET_MODE((uint64_t)m)

INLINE long up8(long n) { return (n + 7) / 8 * 8; }
INLINE long less(long a, long b) { return a < b ? a : b; }
INLINE void zero(R *p, long n) { memset(p, 0, (size_t)n * sizeof(R)); }
INLINE void copy(R *to, const R *p, long n) { memcpy(to, p, (size_t)n * sizeof(R)); }
/* A row of gradients back through a ReLU of output y, and onto a sum of rows; n is a multiple of eight. */
INLINE void back_row(long n, const R *y, R *row, R *sum) {
  for (long o = 0; o < n; o += 8) {
    V masked = WHERE(LOAD(row + o), LOAD(y + o));
    STORE(row + o, masked);
    STORE(sum + o, ADD(LOAD(sum + o), masked));
  }
}

/* Matrix products: from zero, from a row that all get (then with a ReLU), or onto what is there. */
enum { ZERO, ONTO, RELU };

/* c (rows x 16, or x 8): sums over k of a[i ra + k ka] b[k ldb ..]; all of c is held in registers. */
#define BEGIN(i, T, LD, SP) const R *a##i = a + i * ra; \
  T x##i = how == ZERO ? SP(0) : LD(how == ONTO ? c + (i < rows ? i : 0) * ldc : row);
#define TERM(i, SP, MA) if (i < rows) x##i = MA(SP(a##i[at]), u, x##i);
#define END(i, ST, IF) if (i < rows) ST(c + i * ldc, how == RELU ? IF(x##i, x##i) : x##i);
#define DEFINE(name, T, LD, ST, SP, MA, IF) \
  INLINE void name(const int rows, int how, long depth, const R *a, long ra, long ka, const R *b, long ldb, \
                   const R *row, R *c, long ldc) { \
    EACH(BEGIN, T, LD, SP) \
    for (long k = 0, at = 0; k < depth; k++, at += ka, b += ldb) { T u = LD(b); EACH(TERM, SP, MA) } \
    EACH(END, ST, IF) \
  }
DEFINE(tile16, W, LOAD16, STORE16, SPLAT16, FMA16, WHERE16)
DEFINE(tile8, V, LOAD, STORE, SPLAT, FMA, WHERE)

/* c (rows x columns) by tiles; columns is a multiple of eight. */
APART void product(int how, long rows, long columns, long depth, const R *a, long ra, long ka, const R *b, long ldb,
                   const R *row, R *c, long ldc) {
#define TILE(n, ...) \
  case n + 1: tile16(n + 1, how, depth, a + i * ra, ra, ka, b, ldb, row, c + i * ldc, ldc); break; \
  case -n - 1: tile8(n + 1, how, depth, a + i * ra, ra, ka, b, ldb, row, c + i * ldc, ldc); break;
  for (long j = 0; j < columns; j += 16, b += 16, c += 16, row += row ? 16 : 0)
    for (long i = 0; i < rows; i += ROWS)
      switch (less(rows - i, ROWS) * (columns - j > 8 ? 1 : -1)) { EACH(TILE, ) }
}

/* A step's numbers. `kind`: Adam, SGD with a velocity in m, SGD; `first`: moments are zero, m and v are not read;
 * `kept`: they are written. */
enum { ADAM, VELOCITY, SGD };
typedef struct { int32_t kind, first, kept; double rate, keep1, new1, keep2, new2, root, eps, decay, shrink; } Rule;

/* g' = g + decay p; Adam: m = keep1 m + new1 g', v = keep2 v + new2 g'^2, p = shrink p - rate m / (sqrt(v) root + eps);
 * SGD: m = keep1 m + g', p = shrink p - rate m. */
INLINE void step8(const Rule *r, V g, R *p, R *m, R *v) {
  V old = LOAD(p), move = g = FMA(SPLAT((R)r->decay), old, g);
  if (r->kind == ADAM) move = MUL(SPLAT((R)r->new1), g);
  if (r->kind != SGD && !r->first) move = FMA(SPLAT((R)r->keep1), LOAD(m), move);
  if (r->kind != SGD && r->kept) STORE(m, move);
  move = MUL(SPLAT((R)r->rate), move);
  if (r->kind == ADAM) {
    V squares = MUL(MUL(SPLAT((R)r->new2), g), g);
    if (!r->first) squares = FMA(SPLAT((R)r->keep2), LOAD(v), squares);
    if (r->kept) STORE(v, squares);
    move = DIV(move, FMA(ROOT(squares), SPLAT((R)r->root), SPLAT((R)r->eps)));
  }
  STORE(p, SUB(MUL(SPLAT((R)r->shrink), old), move));
}

/* n values of p take a step along g. */
INLINE void step(const Rule *r, R *m, R *v, long n, const R *g, R *p) {
  long i = 0;
  for (; i + 8 <= n; i += 8) step8(r, LOAD(g + i), p + i, m + i, v + i);
  R *of[3] = {p + i, m + i, v + i}, rest[4][8] = {{0}};
  if (i == n) return;
  copy(rest[3], g + i, n - i);
  for (int q = 0; q <= 2 - r->kind; q++) if (!q || !r->first) copy(rest[q], of[q], n - i);
  step8(r, LOAD(rest[3]), rest[0], rest[1], rest[2]);
  for (int q = 0; q <= 2 - r->kind; q++) if (!q || r->kept) copy(of[q], rest[q], n - i);
}

/* So do tensors, each given by its moments, number of values, gradient and values. */
typedef struct { R *m, *v; int64_t n; const R *g; R *p; } Moved;
PUBLIC void relief_steps(const Rule *r, long number, const Moved *t) {
  MODE(FLUSHED);
  for (long i = 0; i < number; i++) step(r, t[i].m, t[i].v, t[i].n, t[i].g, t[i].p);
}

/* Linear layers: y (B, O) = bias (or 0) + h (B, N; rows of ldh) w (O, N)^T. */
INLINE void dots(const int rows, const int outs, long n, const R *h, long ldh, const R *w, const R *bias, R *y,
                 long ldy) {
  V sum[12];
  for (int q = 0; q < rows * outs; q++) sum[q] = SPLAT(0);
  long k = 0;
  for (; k + 8 <= n; k += 8)
    for (int o = 0; o < outs; o++) {
      V u = LOAD(w + o * n + k);
      for (int i = 0; i < rows; i++) sum[o * rows + i] = FMA(LOAD(h + i * ldh + k), u, sum[o * rows + i]);
    }
  for (int q = 0; q < rows * outs; q++) {
    const int i = q % rows, o = q / rows;
    R rest[2][8] = {{0}};
    copy(rest[0], h + i * ldh + k, n - k);
    copy(rest[1], w + o * n + k, n - k);
    y[i * ldy + o] = lanes(k < n ? FMA(LOAD(rest[0]), LOAD(rest[1]), sum[q]) : sum[q]) + (bias ? bias[o] : 0);
  }
}
#if PAIRED
/* Outputs o and o + 1 in the halves of a register, each with its own eight lanes; n is a multiple of eight. */
INLINE void dots_wide(const int rows, long n, const R *h, long ldh, const R *w, const R *bias, R *y, long ldy) {
  W sum[12];
  for (int q = 0; q < rows * 3; q++) sum[q] = SPLAT16(0);
  for (long k = 0; k < n; k += 8)
    for (int o = 0; o < 3; o++) {
      W u = _mm512_insertf32x8(_mm512_castps256_ps512(LOAD(w + 2 * o * n + k)), LOAD(w + (2 * o + 1) * n + k), 1);
      for (int i = 0; i < rows; i++)
        sum[o * rows + i] = FMA16(_mm512_broadcast_f32x8(LOAD(h + i * ldh + k)), u, sum[o * rows + i]);
    }
  for (int q = 0; q < rows * 3; q++) {
    const int i = q % rows, o = q / rows * 2;
    y[i * ldy + o] = lanes(_mm512_castps512_ps256(sum[q])) + (bias ? bias[o] : 0);
    y[i * ldy + o + 1] = lanes(_mm512_extractf32x8_ps(sum[q], 1)) + (bias ? bias[o + 1] : 0);
  }
}
#define DOTS6(a) if (high == a && wide == 6) \
      dots_wide(a, n, h + i * ldh, ldh, w + o * n, bias ? bias + o : 0, y + i * outs + o, outs);
#else
#define DOTS6(a)
#endif
PUBLIC void relief_linear(long batch, long outs, long n, const R *h, long ldh, const R *w, const R *bias, R *y) {
  MODE(FLUSHED);
  for (long o = 0, wide; o < outs; o += wide) {
    wide = PAIRED && o + 6 <= outs && n % 8 == 0 ? 6 : o + 3 <= outs ? 3 : 1;
    for (long i = 0, high; i < batch; i += high) {
      high = i + 4 <= batch ? 4 : 1;
#define DOTS(a, b) if (high == a && wide == b) \
      dots(a, b, n, h + i * ldh, ldh, w + o * n, bias ? bias + o : 0, y + i * outs + o, outs);
      DOTS(4, 3) DOTS(1, 3) DOTS(4, 1) DOTS(1, 1)
      DOTS6(4) DOTS6(1)
    }
  }
}

/* Sixteen columns of x (rows; ldx) from j on, packed; those behind the n-th are zero. */
INLINE void strip(long rows, long n, long j, const R *x, long ldx, R *out) {
  if (n - j < 16) zero(out, 16 * rows);
  for (long i = 0; i < rows; i++, out += 16, x += ldx)
    if (n - j < 16) copy(out, x + j, n - j);
    else { STORE(out, LOAD(x + j)); STORE(out + 8, LOAD(x + j + 8)); }
}

/* Backward: dh (B, N; rows of ldd, a multiple of 16) = g w, unless it is null. Then w takes its step along g^T h, some
 * rows at a time, or dw gets this gradient, where one of them is given. work: 16 max(O, (B + 12) ceil(N / 16)). */
PUBLIC void relief_linear_back(long batch, long outs, long n, const R *g, const R *h, long ldh, R *w, R *dh, long ldd,
                               R *dw, const Rule *r, R *m, R *v, R *work) {
  MODE(FLUSHED);
  for (long j = 0; dh && j < n; j += 16) {
    strip(outs, n, j, w, n, work);
    product(ZERO, batch, 16, outs, g, outs, 1, work, 16, 0, dh + j, ldd);
  }
  const long wide = (n + 15) / 16 * 16;
  R *rows = work + wide * batch;
  if (dw || r) for (long j = 0; j < n; j += 16) strip(batch, n, j, h, ldh, work + j * batch);
  for (long i = 0; (dw || r) && i < outs; i += ROWS) {
    const long num = less(ROWS, outs - i);
    for (long j = 0; j < n; j += 16) {
      for (long at = i * n + j; !dw && at < (i + num) * n; at += n) { /* from memory while this tile is computed */
        __builtin_prefetch(w + at, 1);
        if (r->kept) { __builtin_prefetch(m + at, 1); __builtin_prefetch(v + at, 1); }
      }
      product(ZERO, num, 16, batch, g + i, 1, outs, work + j * batch, 16, 0, rows + j, wide);
    }
    for (long q = 0, at = i * n; q < num; q++, at += n)
      if (dw) copy(dw + at, rows + q * wide, n); else step(r, m + at, v + at, n, rows + q * wide, w + at);
  }
}

/* out (O) = sums over the rows of g (B, O), row after row. */
PUBLIC void relief_columns(long batch, long outs, const R *g, R *out) {
  MODE(FLUSHED);
  zero(out, outs);
  for (long i = 0; i < batch; i++, g += outs) for (long o = 0; o < outs; o++) out[o] += g[o];
}

/* Convolutions with kernel 5, stride 2, padding 2; weights (outs, ins, 5). steps: of the output. */
typedef struct { long batch, samples, ins, outs, pooled; } Conv;
INLINE long steps_of(const Conv *c) { return (c->samples + 1) / 2; }

/* Weights as rows of a column: out[(k padded + i) c2 + o], then the bias as a row; and gradients back. */
INLINE void pack(const Conv *c, long padded, const R *w, const R *bias, R *out) {
  const long wide = up8(c->outs);
  zero(out, (5 * padded + 1) * wide);
  for (long o = 0; o < c->outs; o++)
    for (long i = 0; i < c->ins; i++)
      for (long k = 0; k < 5; k++) out[(k * padded + i) * wide + o] = w[(o * c->ins + i) * 5 + k];
  copy(out + 5 * padded * wide, bias, c->outs);
}
INLINE void unpack(const Conv *c, long padded, const R *in, R *dw, R *db) {
  const long wide = up8(c->outs);
  for (long o = 0; o < c->outs; o++)
    for (long i = 0; i < c->ins; i++)
      for (long k = 0; k < 5; k++) dw[(o * c->ins + i) * 5 + k] = in[(k * padded + i) * wide + o];
  copy(db, in + 5 * padded * wide, c->outs);
}
/* For the gradient by the input: by output, in the order in which steps meet an even (k = 4, 2, 0) or an odd sample. */
INLINE void pack_back(const Conv *c, const R *w, R *even, R *odd) {
  const long in8 = up8(c->ins), out8 = up8(c->outs);
  zero(even, 3 * out8 * in8);
  zero(odd, 2 * out8 * in8);
  for (long o = 0; o < c->outs; o++)
    for (long i = 0; i < c->ins; i++)
      for (long k = 0; k < 5; k++)
        (k % 2 ? odd : even)[((4 - k) / 2 * out8 + o) * in8 + i] = w[(o * c->ins + i) * 5 + k];
}

/* y (B, Q + 4, c1) = ReLU(conv(x)); x (B, T + 4, C). work: (5 C + 1) c1 values. */
PUBLIC void relief_conv1(const Conv *c, const R *x, const R *w, const R *bias, R *y, R *work) {
  MODE(FLUSHED);
  const long steps = steps_of(c), wide = up8(c->outs), depth = 5 * c->ins, pad = 2 * wide;
  pack(c, c->ins, w, bias, work);
  for (long b = 0; b < c->batch; b++, x += (c->samples + 4) * c->ins, y += (steps + 4) * wide) {
    zero(y, pad);
    zero(y + pad + steps * wide, pad);
    product(RELU, steps, wide, depth, x, 2 * c->ins, 1, work, wide, work + depth * wide, y + pad, wide);
  }
}

/* y2 (B, S, c2) = ReLU(conv(y1)) of all windows if `keep`, else of the last; f (B, C2 P) its means over time, channel
 * after channel. work: (5 c1 + 1) c2 values. */
INLINE long from(const Conv *c, long p) { return p * steps_of(c) / c->pooled; }
INLINE long to(const Conv *c, long p) { return ((p + 1) * steps_of(c) + c->pooled - 1) / c->pooled; }
PUBLIC void relief_conv2(const Conv *c, const R *y1, const R *w, const R *bias, R *y2, long keep, R *f, R *work) {
  MODE(FLUSHED);
  const long steps = steps_of(c), in8 = up8(c->ins), wide = up8(c->outs), depth = 5 * in8;
  pack(c, in8, w, bias, work);
  for (long b = 0; b < c->batch; b++, y1 += (c->samples + 4) * in8, y2 += keep ? steps * wide : 0) {
    product(RELU, steps, wide, depth, y1, 2 * in8, 1, work, wide, work + depth * wide, y2, wide);
    for (long p = 0; p < c->pooled; p++) {
      const long first = from(c, p), last = to(c, p);
      for (long o = 0; o < c->outs; o += 8) {
        R mean[8];
        V sum = LOAD(y2 + first * wide + o);
        for (long t = first + 1; t < last; t++) sum = ADD(sum, LOAD(y2 + t * wide + o));
        STORE(mean, last - first > 1 ? DIV(sum, SPLAT((R)(last - first))) : sum);
        for (long q = 0; q < less(8, c->outs - o); q++) f[(o + q) * c->pooled + p] = mean[q];
      }
    }
    f += c->outs * c->pooled;
  }
}

/* Backward: dw, db, and dy1 (B, Q, c1) unless it is null, from df (B; rows of ldf). work: (10 c1 + S + 3) c2 values. */
PUBLIC void relief_conv2_back(const Conv *c, const R *df, long ldf, const R *y2, const R *y1, const R *w, R *dw, R *db,
                              R *dy1, R *work) {
  MODE(FLUSHED);
  const long steps = steps_of(c), in8 = up8(c->ins), wide = up8(c->outs), size = (5 * in8 + 1) * wide;
  R *g = work + size, *even = g + (steps + 2) * wide, *odd = even + 3 * wide * in8;
  zero(work, size + (steps + 2) * wide);
  if (dy1) pack_back(c, w, even, odd);
  for (long b = 0; b < c->batch; b++, df += ldf, y1 += (c->samples + 4) * in8) {
    zero(g + wide, steps * wide);
    for (long p = 0; p < c->pooled; p++) {
      const long first = from(c, p), last = to(c, p);
      const R share = (R)1 / (R)(last - first);
      for (long t = first; t < last; t++)
        for (long o = 0; o < c->outs; o++) g[(t + 1) * wide + o] += df[o * c->pooled + p] * share;
    }
    for (R *row = g + wide; row < g + (steps + 1) * wide; row += wide, y2 += wide)
      back_row(wide, y2, row, work + size - wide);
    product(ONTO, 5 * in8, wide, steps, y1, 1, 2 * in8, g + wide, wide, 0, work, wide);
    if (!dy1) continue;
    product(ZERO, steps, in8, 3 * wide, g, wide, 1, even, in8, 0, dy1, 2 * in8);
    product(ZERO, c->samples / 2, in8, 2 * wide, g + wide, wide, 1, odd, in8, 0, dy1 + in8, 2 * in8);
    dy1 += c->samples * in8;
  }
  unpack(c, in8, work, dw, db);
}

/* Backward: dw and db from dy (B, Q, c1), which is masked in place. work: (5 C + 1) c1 values. */
PUBLIC void relief_conv1_back(const Conv *c, R *dy, const R *y, const R *x, R *dw, R *db, R *work) {
  MODE(FLUSHED);
  const long steps = steps_of(c), wide = up8(c->outs), depth = 5 * c->ins;
  zero(work, (depth + 1) * wide);
  for (long b = 0; b < c->batch; b++, x += (c->samples + 4) * c->ins, dy += steps * wide, y += (steps + 4) * wide) {
    for (long t = 0; t < steps; t++) back_row(wide, y + (t + 2) * wide, dy + t * wide, work + depth * wide);
    product(ONTO, depth, wide, steps, x, 1, 2 * c->ins, dy, wide, 0, work, wide);
  }
  unpack(c, c->ins, work, dw, db);
}

/* Fusion: y = ReLU(first block + bias, then the others one after the other), blocks with rows of ld values, 0: the same
 * row for all; backward: g where y > 0. */
PUBLIC void relief_fuse(long batch, long outs, long blocks, const R *const *block, const int64_t *ld, const R *bias,
                        R *y) {
  MODE(FLUSHED);
  for (long i = 0; i < batch; i++)
    for (long o = 0; o < outs; o++) {
      R sum = block[0][i * ld[0] + o] + bias[o];
      for (long q = 1; q < blocks; q++) sum += block[q][i * ld[q] + o];
      *y++ = sum <= 0 ? 0 : sum;
    }
}
PUBLIC void relief_fuse_back(long n, const R *g, const R *y, R *masked) {
  MODE(FLUSHED);
  for (long i = 0; i < n; i++) masked[i] = y[i] <= 0 ? 0 : g[i];
}

/* |d|^2 in double precision, in which products of two floats are exact: eight sums, added up as `lanes` does. d is x,
 * or x - start, which goes to `out`, where that is given. */
INLINE void squares8(const R *x, const R *start, R *out, double *sum) {
  R d[8];
  STORE(d, start ? SUB(LOAD(x), LOAD(start)) : LOAD(x));
  if (start) STORE(out, LOAD(d));
  for (int q = 0; q < 8; q++) sum[q] += (double)d[q] * (double)d[q];
}
INLINE void squares_of(long n, const R *x, const R *start, R *out, double *sum) {
  double own[8];
  R rest[3][8] = {{0}};
  const long whole = n / 8 * 8, num = n - whole;
  memcpy(own, sum, sizeof own);
  for (long i = 0; start && i < whole; i += 8) squares8(x + i, start + i, out + i, own);
  for (long i = 0; !start && i < whole; i += 8) squares8(x + i, 0, 0, own);
  copy(rest[0], x + whole, num);
  if (start) copy(rest[1], start + whole, num);
  squares8(rest[0], start ? rest[1] : 0, rest[2], own);
  if (start) copy(out + whole, rest[2], num);
  memcpy(sum, own, sizeof own);
}
INLINE double added(const double *sum) {
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}
PUBLIC double relief_squares(long n, const R *x, const R *start, R *out) {
  MODE(EXACT);
  double sum[8] = {0};
  squares_of(n, x, start, out, sum);
  return added(sum);
}

#ifndef RELIEF_DOUBLE
/* d = x - start as int8 codes of its tensors say it, in `out`: rint(d / s) s for s = max |d| / 127 of each tensor, 0
 * where s is not normal. Its |.|^2 is returned. `told`: how many values were not 0 before and after; -1 where one
 * cannot be sent so, and then nothing is rounded. The largest is found among the bits, where NaN is above infinity; a
 * sum with 1.5 2^23 rounds to even. */
enum { CHUNK = 2048 };
APART uint32_t changes(long n, const float *x, const float *start, float *out) {
  uint32_t largest = 0;
  for (long from = 0; from < n; from += CHUNK) {
    const long to = n - from < CHUNK ? n : from + CHUNK;
    for (long i = from; i < to; i++) out[i] = x[i] - start[i];
    for (long i = from; i < to; i++) {
      uint32_t bits;
      memcpy(&bits, out + i, sizeof bits);
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
  }
  return largest;
}
APART void says(long n, float *x, float s, int64_t *told) {
  const float keep = s < 1.1754943508222875e-38f ? 0.0f : s, by = keep > 0 ? s : 1.0f;
  uint32_t was = 0, now = 0;
  for (long i = 0; i < n; i++) {
    const float d = x[i], y = ((d / by + 12582912.0f) - 12582912.0f) * keep;
    was += d != 0;
    now += y != 0;
    x[i] = y;
  }
  told[0] += was;
  told[1] += now;
}
PUBLIC double relief_coded(const float *x, const float *start, float *out, long num, const int64_t *lengths, float *s,
                           int64_t *told) {
  MODE(EXACT);
  int fits = 1;
  long n = 0;
  for (long i = 0; i < num; n += lengths[i++]) {
    const uint32_t largest = changes(lengths[i], x + n, start + n, out + n);
    memcpy(s + i, &largest, sizeof *s);
    s[i] /= 127.0f;
    fits &= largest < 0x7f800000u && s[i] * 127.0f <= 3.4028234663852886e38f;
  }
  told[0] = told[1] = fits ? 0 : -1;
  double sum[8] = {0};
  long tensor = 0, end = num ? lengths[0] : 0;
  for (long from = 0; from < n; from += CHUNK) {
    const long to = n - from < CHUNK ? n : from + CHUNK;
    for (long at = from; fits && at < to;) {
      while (end <= at) end += lengths[++tensor];
      const long stop = end < to ? end : to;
      says(stop - at, out + at, s[tensor], told);
      at = stop;
    }
    squares_of(to - from, out + from, 0, 0, sum);
  }
  return added(sum);
}
#endif

/* e^x for x <= 0 and ln(s) for s >= 1, in double precision, by series that are exact to its last places. */
INLINE double exp_of(double x) {
  if (!(x >= -700)) return x != x ? x : 0;
  const long n = (long)(x * 1.4426950408889634 - 0.5);
  const double r = (x - (double)n * 6.93147180369123816490e-01) - (double)n * 1.90821492927058770002e-10;
  double sum = 1, power;
  for (int q = 14; q >= 1; q--) sum = 1 + sum * r / q;
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  memcpy(&power, &bits, sizeof power);
  return sum * power;
}
INLINE double ln_of(double s) {
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

/* Mean cross-entropy of logits (B, K) at labels (B,), and its gradient g; NaN where a label is none. */
PUBLIC double relief_loss(long batch, long classes, const R *logits, const int64_t *labels, R *g) {
  MODE(FLUSHED);
  double loss = 0;
  for (long i = 0; i < batch; i++, logits += classes) {
    if (labels[i] < 0 || labels[i] >= classes) return __builtin_nan("");
    double most = logits[0], sum = 0;
    for (long k = 1; k < classes; k++) if (!(logits[k] <= most)) most = logits[k];
    for (long k = 0; k < classes; k++) sum += exp_of(logits[k] - most);
    loss += (sum == sum ? ln_of(sum) : sum) - (logits[labels[i]] - most);
    for (long k = 0; k < classes; k++)
      *g++ = (R)((exp_of(logits[k] - most) / sum - (k == labels[i])) / (double)batch);
  }
  return loss / (double)batch;
}
