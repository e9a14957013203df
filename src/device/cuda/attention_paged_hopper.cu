/* attention_paged_hopper.cu - rows of several tokens over their blocks by warpgroups (capability 9.0), for all types of keys.
 *
 * As attention_paged_tiles.cuh, with 64 lines to a warpgroup and longer steps. The last warpgroup of a block of threads fills tiles
 * (attention_paged_fill.cuh); the others multiply, and share the tiles that come through a ring (attention_paged_ring.cuh). Nobody else waits
 * for all: while one warpgroup makes probabilities, another one multiplies. Queries stay in registers.
 *
 * Step i of a multiplying warpgroup, i > 0:
 *
 *     its turn        products of keys i begin, then those of probabilities i - 1 and values i - 1; the next warpgroup has its turn
 *     scores i        are there: keys i are released
 *                     scores become probabilities while values i - 1 are still multiplied
 *     sums i - 1      are there: values i - 1 are released; sums fade if a maximum rose
 *
 * Turns keep warpgroups apart. Without them two that begin together share the tensor cores evenly, end their products together, and leave
 * them idle together. A warpgroup without lines only lets tiles pass, and then nobody takes turns.
 *
 * Steps begin at multiples of their size, in order, and a masked key adds exactly nothing: a line's bits depend neither on its neighbours nor
 * on the tile it is in.
 */
#include "device/cuda/attention_paged_fill.cuh"

namespace
{

/* Fragments of 16 lines from `first` on; zeros where there is no line. */
template <class type, bool coded, int width>
ON_GPU void load_fragments(uint32_t (&q)[width / 16][4], const struct paged &a, const struct lines &t,
                           int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = first + lane / 4 + i * 8;
        const bool have = line < t.count * a.group;
        const uint16_t *from = (const uint16_t *)a.q + (have ? line_at(a, t, line) : 0);
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
            const int column = n * 8 + lane % 4 * 2;
            const uint32_t x = have && column < a.size ? *(const uint32_t *)(from + column) : 0;
            q[n / 2][n % 2 * 2 + i] = coded ? as_f16<type>(x) : x;
        }
    }
}

/* c[64][8 tiles] (+)= F X for the 16 rows X from row 16 n on of a tile, named by wgmma_tile. */
template <class type, int tiles>
ON_GPU void multiply_turned(float (&c)[1][tiles][4], const uint32_t (&f)[4], uint64_t tile, int n, bool add)
{
    static_assert(tiles == 8 || tiles == 16, "one instruction");
    const uint64_t rows = tile & ~(uint64_t)0xffffffff | (uint32_t)tile + n * (2048 >> 4); /* no carry */
    if constexpr (tiles == 8)
        wgmma<type>::turned(c[0], f, rows, add);
    else
        wgmma<type>::turned128(c[0], f, rows, add);
}

/* s[64][STEP] = Q K. */
template <class type, int width, int tiles>
ON_GPU void begin_scores(float (&s)[1][tiles][4], const uint32_t (&q)[width / 16][4], uint32_t keys)
{
    const uint64_t tile = wgmma_tile(keys, width * 128);
    wgmma_begin();
#pragma unroll
    for (int n = 0; n < width / 16; n++) multiply_turned<type>(s, q[n], tile, n, n > 0);
    wgmma_commit();
}

/* out[64][width] += P V. */
template <class type, int step, int tiles>
ON_GPU void begin_sums(float (&out)[1][tiles][4], const uint32_t (&p)[step / 16][4], uint32_t values)
{
    const uint64_t tile = wgmma_tile(values, step * 128);
    wgmma_begin();
#pragma unroll
    for (int n = 0; n < step / 16; n++) multiply_turned<type>(out, p[n], tile, n, true);
    wgmma_commit();
}

/* Which keys the two lines of a thread see, and in which steps all lines of its warpgroup see all keys. */
struct sight {
    int last[2], window;
    int whole_from, whole_until; /* first keys of such steps */
};

template <int step> ON_GPU struct sight see(const struct paged &a, const struct lines &t)
{
    const int first = own_warpgroup() * WG_ROWS, lane = threadIdx.x % 32;
    auto position = [&](int line) { return t.position + min(line / a.group, t.count - 1); };
    struct sight s;
    const int mine = first + threadIdx.x / 32 % 4 * 16 + lane / 4;
    s.last[0] = position(mine), s.last[1] = position(mine + 8), s.window = a.window;
    s.whole_from = a.window ? position(first + WG_ROWS - 1) - a.window + 1 : 0;
    s.whole_until = position(first) - step + 1;
    return s;
}

/* Scores of keys that lines do not see become -inf. */
template <int tiles> ON_GPU void hide(float (&s)[1][tiles][4], const struct sight &see, int key)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int last = see.last[half] - key - threadIdx.x % 4 * 2;
        const int first = see.window ? last - see.window + 1 : INT_MIN;
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * 8 + i < first || n * 8 + i > last) s[0][n][2 * half + i] = -INFINITY;
    }
}

/* soften_scores for one line in two chains: a warp has few others beside it that hide what an instruction takes. */
template <int tiles>
ON_GPU float soften_line(float (&s)[1][tiles][4], int half, float &top, float &sum, float scale2)
{
    float most[2] = {top, -INFINITY}, more[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) most[i] = fmaxf(most[i], s[0][n][2 * half + i]);
    float best = fmaxf(most[0], most[1]);
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    const float base = best == -INFINITY ? 0.0f : best, scaled = __fmul_rn(base, scale2);
    const float fade = exp2_fast(__fsub_rn(__fmul_rn(top, scale2), scaled));
    top = best;
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float p = exp2_fast(fmaf(s[0][n][2 * half + i], scale2, -scaled));
            s[0][n][2 * half + i] = p;
            more[i] += p;
        }
    sum = sum * fade + (more[0] + more[1]);
    return fade;
}

/* Scores of the step's keys become probabilities against the new maximum; sums so far are still to be multiplied with fade. */
template <int width, int tiles>
ON_GPU void probabilities(const struct paged &a, float (&s)[1][tiles][4], struct soft_rows<width, 1> &r,
                          float (&fade)[1][2], const struct sight &see, int key)
{
    if (a.cap > 0) each_score(s, threadIdx.x % 32, [&](float x, int) { return paged_score(a, x); });
    if (key < see.whole_from || key > see.whole_until) hide(s, see, key);
#pragma unroll
    for (int half = 0; half < 2; half++)
        fade[0][half] = soften_line(s, half, r.top[0][half], r.sum[0][half], a.scale2);
}

/* Probabilities become fragments. */
template <class type, int tiles> ON_GPU void pack(uint32_t (&p)[tiles / 2][4], const float (&s)[1][tiles][4])
{
#pragma unroll
    for (int n = 0; n < tiles / 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[n][i] = type::pack(s[0][2 * n + i / 2][i % 2 * 2], s[0][2 * n + i / 2][i % 2 * 2 + 1]);
}

/* Four lanes that have word `lane` of four pieces of 16 bytes each: afterwards lane i has piece i. */
template <class word> ON_GPU uint4 gather_piece(const word (&x)[4])
{
    const bool odd = threadIdx.x & 1, up = threadIdx.x & 2;
    const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1);
    const uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
    const uint2 low = odd ? make_uint2(a, x[1]) : make_uint2(x[0], a);
    const uint2 high = odd ? make_uint2(b, x[3]) : make_uint2(x[2], b);
    const uint32_t c = __shfl_xor_sync(0xffffffffu, up ? low.x : high.x, 2);
    const uint32_t d = __shfl_xor_sync(0xffffffffu, up ? low.y : high.y, 2);
    return up ? make_uint4(c, d, high.x, high.y) : make_uint4(low.x, low.y, c, d);
}

/* A warp's 16 lines from `first` on to global memory, from registers: tiles belong to those who fill them. */
template <class type, int width>
ON_GPU void store_lines(const struct paged &a, const struct lines &t, const struct soft_rows<width, 1> &r,
                        int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[0][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float by = sum == 0 ? 0.0f : 1.0f / sum;
        const int line = first + half * 8 + lane / 4;
        const bool have = line < t.count * a.group;
        uint16_t *to = (uint16_t *)a.o + (have ? line_at(a, t, line) : 0);
#pragma unroll
        for (int n = 0; n < width / 8; n += 4) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = type::pack(r.out[0][n + i][2 * half] * by, r.out[0][n + i][2 * half + 1] * by);
            const uint4 piece = gather_piece(x);
            const int column = (n + lane % 4) * 8;
            if (have && column < a.size) *(uint4 *)(to + column) = piece;
        }
    }
}

/* Turns of multiplying warpgroups, by barriers 1 to GROUPS. */
template <class cut> ON_GPU void take_turn(int group) { turn_wait<2 * WG_THREADS>(1 + group); }
template <class cut> ON_GPU void give_turn(int group)
{
    turn_give<2 * WG_THREADS>(1 + (group + 1) % cut::GROUPS);
}

/* Lets the tiles of `steps` pass. */
template <class cut> ON_GPU void pass(struct ring<cut> &in, int steps)
{
    for (int i = 0; i < 2 * steps; i++) in.await_full(), in.release(), in.move_on();
}

template <class type, int width, class CODES, class cut>
ON_GPU void multiply_row(const struct paged &a, const struct lines &t, struct ring<cut> &in)
{
    constexpr bool coded = is_coded<CODES>::value, scales = coded && !keys_have_scales<CODES>::value;
    using number = typename product_type<type, CODES>::is;
    const int group = own_warpgroup(), first = threadIdx.x / 32 * 16;
    const struct span_of_keys k = keys_of<cut::STEP>(a, t);
    const bool turns = t.count * a.group > (cut::GROUPS - 1) * WG_ROWS;
    if (group * WG_ROWS >= t.count * a.group) {
        pass(in, k.steps);
        return;
    }
    uint32_t q[width / 16][4], p[cut::STEP / 16][4];
    load_fragments<type, coded, width>(q, a, t, first);
    const struct sight sight = see<cut::STEP>(a, t);
    struct soft_rows<width, 1> r;
    float s[1][cut::STEP / 8][4], fade[1][2];
    r.clear();
    auto have_scores = [&] {
        if constexpr (scales) {
            const float *by = in.scales();
            each_score(s, threadIdx.x % 32, [&](float x, int at) { return x * by[at]; });
        }
        in.release(), in.move_on();
    };
    in.await_full();
    begin_scores<number, width>(s, q, in.tile_address());
    wgmma_wait<0>();
    wgmma_settled(s);
    have_scores();
    probabilities(a, s, r, fade, sight, k.first);
    pack<number>(p, s);
    for (int i = 1; i < k.steps; i++) {
        struct ring<cut> values = in;
        values.move_on();
        in.await_full();
        if (turns) take_turn<cut>(group);
        begin_scores<number, width>(s, q, in.tile_address());
        values.await_full();
        begin_sums<number, cut::STEP>(r.out, p, values.tile_address());
        if (turns) give_turn<cut>(group);
        wgmma_wait<1>();
        wgmma_settled(s);
        have_scores();
        probabilities(a, s, r, fade, sight, k.first + i * cut::STEP);
        wgmma_wait<0>();
        wgmma_settled(r.out);
        in.release(), in.move_on();
        if (__ballot_sync(0xffffffffu, fade[0][0] != 1 || fade[0][1] != 1)) soft_fade(r, fade); /* rarely */
        pack<number>(p, s);
    }
    in.await_full();
    begin_sums<number, cut::STEP>(r.out, p, in.tile_address());
    wgmma_wait<0>();
    wgmma_settled(r.out);
    in.release(), in.move_on();
    store_lines<type, width>(a, t, r, first);
}

template <class type, int width, class CODES>
__global__ void __launch_bounds__(cut<width, is_coded<CODES>::value>::THREADS, 1)
    prompts_hopper(const struct prompt x)
{
#if WG_BODY
    typedef struct cut<width, is_coded<CODES>::value> cut;
    struct ring<cut> r = open_ring<cut>(wg_pool());
    const int group = own_warpgroup();
    if (group == cut::GROUPS) {
        leave_registers<cut::LEFT>();
        each_row(
            x.a, x.tile_tokens, [&](const struct lines &t) { fill_tiles<cut, width, CODES>(x.a, t, r); },
            [](const struct lines &) {});
    } else {
        take_registers<cut::TAKEN>();
        if (group == cut::GROUPS - 1) give_turn<cut>(group);
        each_row(
            x.a, x.tile_tokens, [&](const struct lines &t) { multiply_row<type, width, CODES>(x.a, t, r); },
            [&](const struct lines &t) { blank<cut::MULTIPLYING>(x.a, t); });
        if (group == 0) take_turn<cut>(group); /* the last one given: no barrier is left half full */
    }
#else
    __trap();
#endif
}

template <int width, class CODES> int start_groups(const struct cuda_queue *queue, const struct paged *a)
{
    typedef struct cut<width, is_coded<CODES>::value> cut;
    prompt_kernel *kernel =
        a->type == DT_BF16 ? prompts_hopper<type_bf16, width, CODES> : prompts_hopper<type_f16, width, CODES>;
    struct prompt x = {*a, cut::LINES / a->group, cut::SLOTS};
    int failed = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)cut::SHARED);
    if (failed) return failed;
    const int64_t blocks = parts_of(a->tokens, x.tile_tokens) * a->kv_heads;
    return start(queue, kernel, (unsigned)blocks, cut::THREADS, cut::SHARED, x);
}

template <class CODES> int start_width(const struct cuda_queue *queue, const struct paged *a)
{
    return a->size <= 64 ? start_groups<64, CODES>(queue, a) : start_groups<128, CODES>(queue, a);
}

} // namespace

bool cuda_paged_by_warpgroups(const struct cuda_queue *queue, const struct paged *a, bool coded)
{
    return queue->warpgroups && a->size % (coded ? 16 : 8) == 0 && a->group <= 2 * WG_ROWS;
}

int cuda_paged_prompt_hopper(const struct cuda_queue *queue, const struct paged *a, bool coded)
{
    if (!coded) return start_width<no_codes>(queue, a);
    return a->e4m3 ? start_width<codes_e4m3>(queue, a) : start_width<codes_i8>(queue, a);
}
