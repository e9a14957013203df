/* op.h - the op table: one row per op drives shape rule, gradient, cost, in-place permission and printer.
 *
 * Operands are named by slots.h: op->in[LINEAR_W] is the id of a linear's weight.
 *
 * Semantics. N is B*T rows; dtypes: "x-type" is the compute type (f32, bf16, f16); statistics are f32; gradients
 * of parameters are f32 or of the x-type. All arithmetic inside an op is at least fp32; results are rounded once:
 * an op that adds to a narrow gradient reads it, adds its own fp32 sum and rounds the total once.
 * acc: the output obeys op.accumulate. [..] marks optional operands (-1 when absent).
 *
 *  op            inputs                                            outputs                     meaning
 *  embed         ids[B,T]i32 W[V,C]|[C,V] [add[B,T,C]]             y[B,T,C]                    y = W[ids] (+ add); with attr.scale W[ids] * scale, scale rounded to the x-type first; ids count from row attr.first of W
 *  norm          x[..,C] w[C] [b[C]]                               y[..,C] stat[..,S]f32       RMS (S=1: rstd) or LayerNorm (S=2: mean, rstd) over the last dimension; with attr.plus_one the RMS weight is 1 + w
 *  linear        x[..,PK] W[M,K]|[K,M] [bias[M]] [add[..,M]]       y[..,M]                     y = x W' + bias + add; with attr.lines part by part, see below
 *  linear_q      x[..,K] W[bytes]u8 [bias[M]] [add[..,M]]          y[..,M]                     linear with a weight in blocks, see below
 *  linear_f8     x[..,K] W[M (K + 4)]u8 [bias[M]] [add[..,M]]      y[..,M]                     linear with a weight in e4m3, see below
 *  quantise8     x[..,C]                                           [y[R,C]b] [t[C,R]b] scale[1]f32 keep      x as fp8 numbers, see below
 *  linear8       x[R,K]b W[M,K]b x_scale[1]f32 w_scale[1]f32       y[..,M]                     y = x W' x_scale w_scale + bias + add, of f32 or bf16
 *                [bias[M]] [add[..,M]]
 *  linear8_dw    dy[M,R]b x[K,R]b dy_scale[1]f32 x_scale[1]f32     dW acc                      dW = dy x' dy_scale x_scale, in W's layout
 *  expert_linear_q  x[RK,C] W[bytes]u8 ends[E]i32                  y[RK,M]                     expert_linear with weights in blocks
 *  embed_q       ids[B,T]i32 W[bytes]u8                            y[B,T,C]                    embed from a table in blocks: y = W[ids], with attr.scale times it, rounded once
 *  adapter_linear  x[R,PK] W[S,M,K] slot[R]i32 [add[R,M]]          y[R,M]                      y[r] = x[r] W[slot[r]]' + add[r], a matrix for each row; below slot 0 y[r] = add[r] (0 without it), see below
 *  rope_table    pos[B,T]i32 inv_freq[E/2]f32                      table[B,T,E]f32             cos in the first half, sin in the second; with attr.scale times it
 *  attn          q[B,T,H,D] k[B,S,K,D] v[B,S,K,D] [pos[B,T]i32]    o[B,T,H,D] lse[B,H,T]f32    softmax(scale q k') v over visible keys, see below
 *                [lengths[B]i32] [bias[R,H]] [scalars]
 *  rope          x[B,T,H,D] table[B,T,E]f32                        y[B,T,H,D]                  heads rotated, with attr.back rotated back, see below
 *  glu           gate[..,F] up[..,F]                               h[..,F]                     activation(gate) * up; with attr.joint gate[..,2F] has both, each row's gate before its up
 *  act           x                                                 y                           activation(x), see below
 *  add           a b                                               y
 *  row_gate      x[R,C] gate[R] [add[R,C]]                         y[R,C]                      y[r] = x[r] sigmoid(gate[r]) (+ add[r])
 *  take          x[S,C] index[R,2]i32 back[S,2]i32                 y[R,C]                      y[r] = sum of x[i] over the places i in index[r], with attr.once in its first column alone, that are not negative; back is not read: it is the index of the gradient, dx = take(dy)
 *  dora_norm     A[R,K] W[N,K]|[K,N] B[M,R]                        y[M]f32                     y[i] = |W[first + i] + scale B[i] A|, the sum made in fp32 and its squares added in f64; a constant to gradients
 *  dora_norm_q   A[R,K] W[bytes]u8 B[M,R]                          y[M]f32                     dora_norm with a weight in blocks; the M rows are parts of it
 *  column_scale  x[R,C] m[C] norm[C]f32 [bias[C]] [add[R,C]]       y[R,C]                      y = (x - bias) m / norm + bias (+ add), each column by its own factor
 *  dropout       x[B,..] scalars [add[B,..]]                       y[B,..]                     y = x * m (+ add), see below
 *  xent          logits[N,V] targets[N]i32 scalars [weight[N]f32]  [loss[2]f64 acc] [dlogits] [hits[1]f64 acc]  of the logits, with attr.cap of cap tanh(logits / cap): loss += (sum of -log p[target], count); dlogits = (p - onehot) * scalars[LOSS_GRAD] (with a cap times 1 - tanh^2), with a weight * weight instead; target < 0 is ignored (zero row); hits += rows whose target has the largest logit, of equal ones any
 *                                                                  [logp[N]f32]                logp = log p[target], 0 where the target is ignored
 *  preference    logp[B,T]f32 targets[B,T]i32 [reference[B]f32]    loss[2]f64 acc stat[12]f64 acc     the loss of samples of two rows by their log-probabilities, see below
 *                [marks[B]i32] scalars                             sums[B]f32 [weight[B,T]f32]
 *  kv_append     k[B,T,K,D] v pos kc[B,S,K,D] vc                   kc vc                       kc[b,pos[b,t]] = k[b,t]
 *  kv_put        k[1,N,K,D] v slots[N]i32 pool[P,2L,K,16D]         pool                        keys and values of N tokens into blocks, see below
 *  attn_paged    q[1,N,H,D] pool[P,2L,K,16D] rows[R,3]i32          o[1,N,H,D]                  causal attention of rows of tokens over blocks, see below
 *                blocks[R,M]i32
 *  sample        logits[R,V] rows[R,22]i32 [seen[L,2]i32]          token[R]i32 [next[R]i32]    the next token of each row, see below
 *                                                                  [top[R,K]i32] [logprob[R,K+1]f32]
 *  kv_put8       k[1,N,K,D] v slots[N]i32 pool[P,2L,K,16(D+4)]u8   pool                        the same in 8 bits
 *  attn_paged8   q[1,N,H,D] pool[P,2L,K,16(D+4)]u8 rows[R,3]i32    o[1,N,H,D]                  the same over them
 *                blocks[R,M]i32
 *  split3        x[B,T,(H+2K)D] [table[B,T,E]f32]                  q[B,T,H,D] k v[B,T,K,D]     parts of each row; with a table q and k are rotated, see below
 *  pool          x[B,T,C] [lengths[B]i32]                          y[B,C] stat[B]f32           a vector for each row, see below; y is f32 or of the x-type
 *  route         logits[R,E] [lengths[B]i32]                       weight[R,K]f32 expert[R,K]i32      the K experts of each row, see below
 *                                                                  place[R,K]i32 ends[E]i32 stat[3,E]f32
 *  dispatch      x[R,C] place[R,K] [weight[R,K]f32]                y[RK,C]                     y[place[r,i]] = x[r] (* weight[r,i])
 *  expert_linear x[RK,C] W[E,M,C] ends[E]i32                       y[RK,M]                     y[j] = x[j] W[e]' for the rows j of each expert e
 *  combine       x[RK,C] place[R,K] [weight[R,K]f32] [add[R,C]]    y[R,C]                      y[r] = sum over i, in order, of x[place[r,i]] (* weight[r,i]), (+ add[r])
 *  router_loss   stat[L,3,E]f32 scalars                            loss[3]f64 acc load[L,E]f32 acc factor[2,E]f32   see below
 *  embed_bwd     ids dy[B,T,C]                                     dW acc                      in W's layout; with attr.scale of dy * scale
 *  norm_bwd      dy x w stat [add]                                 dx [dw[C] acc] [db acc]     dx = d norm (+ add); db comes with dw
 *  linear_dx     dy[..,M] W [add[..,PK]]                           dx[..,PK]                   dx = dy W (+ add)
 *  linear_q_dx   dy[..,M] W[bytes]u8 [add[..,K]]                   dx[..,K]                    linear_dx with a weight in blocks
 *  linear_dw     dy[..,M] [x[..,PK]]                               [dW acc] [db[M] acc]        in W's layout; x and dW come together; with attr.fresh dW is never added to
 *  attn_bwd      do q k v o lse [pos] [lengths] [bias] [scalars]   dq dk dv [dbias[R,H] acc]
 *  glu_bwd       dh gate up                                        dgate dup [h]               h: glu's result once more, bit for bit
 *  row_gate_bwd  dy[R,C] x[R,C] gate[R]                            dx[R,C] dgate[R]            with s = sigmoid(gate[r]): dx[r] = dy[r] s, dgate[r] = dy[r] . x[r] s (1 - s)
 *  column_scale_bwd  dy[R,C] x[R,C] m[C] norm[C]f32 [bias[C]]      dx[R,C] dm[C] acc           dx = dy m / norm, dm = sum over rows of dy (x - bias) / norm; norm is a constant
 *  act_bwd       dy x                                              dx [y]                      y: act's, likewise
 *  pool_bwd      dy[B,C] y[B,C] stat[B]f32 [lengths]               dx[B,T,C]
 *  join3         q k v [table]                                     x                           inverse of split3: with a table rotated back
 *  route_bwd     dweight[R,K]f32 logits expert [factor] [lengths]  dlogits[R,E]
 *  expert_linear_dx  dy[RK,M] W ends [add[RK,C]]                   dx[RK,C]                    dx[j] = dy[j] W[e] (+ add[j])
 *  expert_linear_q_dx  dy[RK,M] W[bytes]u8 ends [add[RK,C]]        dx[RK,C]                    expert_linear_dx with weights in blocks
 *  expert_linear_dw  dy[RK,M] x[RK,C] ends                         dW[E,M,C] acc               an expert without rows has zeros
 *  combine_dw    dy[R,C] x[RK,C] place                             dweight[R,K]f32             dweight[r,i] = dy[r] . x[place[r,i]]
 *  sumsq         grad                                              sum[1]f64 acc               sum of squares in blocks of a fixed size of the backend's, in order
 *  clip          sums[G] scalars                                   coef[4]f32                  see enum clip_value; norm of all sums, multiplier = unscale * min(1, clip / (norm + 1e-6))
 *  adamw         p g m v [master] scalars [coef]                   p m v [master]              torch.optim.AdamW; decay on p before the step
 *  sgd           p g [momentum] [master] scalars [coef]            p [momentum] [master]       torch.optim.SGD with momentum beta1
 *  adamw8        p g mq vq ms vs [master] scalars [coef]           p mq vq ms vs [master]      adamw on moments of 8 bits, see below
 *  factor_stat   g row [col] scalars [coef]                        row [col] factor[2]f32      Adafactor's second moment, see below
 *  adafactor     p g row [col] factor [m] [master] scalars [coef]  p [m] [master]              Adafactor's step, see below
 *  fetch         far                                               near                        copy from a lower tier
 *  store         near                                              far                         copy to a lower tier
 *  hold          near ..                                                                       nothing: their bytes are in use up to here
 *  gather        piece                                             whole                       every rank's piece, in the order of ranks
 *  reduce        whole                                             piece acc                   this rank's piece of the sum over ranks
 *  piece         whole                                             piece                       this rank's piece; zeros behind the end of the whole
 *  sum           x                                                 x                           the sum over ranks, in place
 *
 * Ranks. Each of W ranks has a piece of P of N elements, P W >= N: rank r has elements [r P, min((r + 1) P, N)). Sums over
 * ranks run in the order of ranks, in fp32 (f64 in f64); reduce adds the previous contents last, and the result is rounded
 * once. All ranks run the same collective ops in the same order.
 *
 * Products. With attr.split, fp32 operands of linear and its gradients may be taken as sums of two bf16 parts, with an error
 * of at most 2^-16 of each product (2^-24 in fp32). A device that does not benefit multiplies fp32.
 *
 * fp8 (marked b; tensor/dtype.h has the two types, e4m3 and e5m2). A tensor is its fp8 numbers times one scale, which is a power of
 * two, so that multiplying by it rounds nothing. quantise8 computes it from the tensor itself: with a the largest finite |x| and F the
 * type's largest number (448 or 57344), scale = 2^-e with e the largest whole number for which 2^e a <= F, at most 100; a = 0: 1.
 * y[r,c] = t[c,r] = 2^e x[r,c], rounded to nearest even; infinity and NaN stay what the type has for them. keep: with
 * op.accumulate the outputs stay as they are (a weight is converted in the first micro-batch of a window). Products sum in fp32; both
 * operands of one have the summed dimension last, as tensor cores want it. linear8 is also the gradient of x, of dy and W'.
 *
 * linear_f8 is for serving. W's bytes are M K e4m3 numbers, line by line, and M scales in fp32 (tensor/f8_lines.h); attr.lines[0].lines is M. x is rounded to e4m3
 * too, with a scale of its own for each row, by quantise8's rule: y[r,m] = x_scale[r] w_scale[m] sum x[r,k] W[m,k] + bias + add. A row of y
 * depends on no other row of x; on a GPU its bits also depend on whether there are more than CUDA_F8_ROWS rows.
 *
 * Weights in blocks (tape/quantised.h is this text in C). W's bytes are the lines of attr.lines, part after part: a number of
 * lines of one block type, as panels (tensor/panels.h); each part begins a new panel. An element of W is its block's decoded
 * value. expert_linear_q has such a matrix for each expert, one after the other. With attr.weight_kn the model's files have
 * the matrix as [K,M]; its bytes are the same. A device may first round x to 8 bits, in blocks of 32 along K, each with a
 * scale: x = d q with d = max |x| / 127 and q the nearest whole number. Or it may round W's elements to the x-type. y of a
 * row depends only on that row, bit for bit; on a GPU linear_q also depends on whether there are more than CUDA_Q_ROWS rows. With
 * attr.keep_x, of types with a table (tensor/blocks.h) and in the gradients no device rounds x or dy to 8 bits. Such a weight
 * is never trained: its gradient is not computed.
 *
 * Parts. With attr.lines of linear and its gradients, attr.lines[p].lines of W's lines belong to part p, in order, and read the K numbers of x's
 * row from p K on: W stands for a matrix of such blocks on its diagonal. There are P parts, all of W's lines are in them, and W is [M,K]. Without
 * parts (attr.lines[0].lines 0) P is 1.
 *
 * Adapters of rows. W of adapter_linear has S matrices, one for each adapter on the device. With parts, attr.lines[p].lines of W's lines
 * belong to part p, in order, and read the K numbers of x's row from p K on; without parts (attr.lines[0].lines 0) P is 1. y of a row
 * depends only on that row, bit for bit.
 *
 * Activations (attr.activation): silu x sigmoid(x); gelu_tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2; gelu
 * x P(X < x) of a normal X; relu max(x, 0), of slope 0 at 0; tanh, with attr.cap cap tanh(x / cap); scale, x
 * attr.scale (0: 1).
 *
 * Pooling (attr.pooling): p is the mean of x[b,t] over t below lengths[b] (T without lengths), or the first of them; 0 if
 * there are none. y = scale p; with attr.normalize scale p stat, where stat = 1 / max(|p|, 1e-12); otherwise stat is 1. Rows
 * from lengths[b] on have dx = 0.
 *
 * Attention. Visible keys of query t in row b, by attr.mask. GQA: query head h reads kv head h / (H / K).
 *
 *     causal   without a cache S == T, keys [max(t - pos[t], t - window + 1), t] (samples packed into one row restart
 *              pos at 0, which makes attention block-diagonal); with a cache keys [max(0, pos[t] - window + 1), pos[t]]
 *     full     keys [0, S), S == T
 *     cross    keys [0, S)
 *     blocks   those of causal (without a window) whose block is among the nearest local_blocks, including the query's own,
 *              or among the first global_blocks. A block is sparse_block positions of a sample, counted from its first
 *
 * With lengths, keys from lengths[b] on are hidden. If a query's own key (t, or pos[t] with a cache) is hidden, the query
 * sees no keys (cross has no such key). A query that sees no key has o = 0, lse = 0, dq = 0 and adds nothing to dk, dv and
 * dbias. Hidden keys have dk = dv = 0.
 *
 * Scores. With x = scale q.k the score is s = x, with attr.cap s = cap tanh(x / cap), and with a bias
 * s + bias[bucket(key - query), h], where query is t or, with a cache, pos[t]. Buckets are T5's: d = key - query; with
 * attr.two_sided N = R / 2 and keys after the query (d > 0) take the upper N buckets, else N = R and d > 0 counts as 0.
 * With E = N / 2 the bucket of distance |d| is
 *
 *     |d|                                                           below E
 *     min(N - 1, E + floor(log(|d| / E) / log(bias_reach / E) (N - E)))       from E on
 *
 * (tape/bias_bucket.h is this text in C). dbias sums over rows, queries and keys in an order that depends on the
 * shape alone.
 *
 * Blocks. A pool holds keys and values of all layers in P blocks of KV_BLOCK = 16 positions. The op's layer l has its keys
 * at pool[block,2l,head] as [D,16] and its values at pool[block,2l+1,head] as [16,D] (keys are transposed, so that the
 * products of a query with 16 keys are sums of rows). kv_put writes token n at position slots[n] % 16 of block
 * slots[n] / 16; a negative slot: nowhere. attn_paged has R rows (first, count, context): the queries are tokens
 * [first, first + count), query i is at position context + i and sees what a causal query with a cache sees, with
 * attr.window and attr.cap; position p is in block blocks[row][p / 16]. Tokens in no row have o = 0. A query's o depends
 * only on its own row's context, bit for bit: not on how a sequence was divided into rows, on other rows or on threads. A
 * device with tensor cores may sum tokens of longer rows in another order than single tokens.
 *
 * Sampling. A row is a struct sample_row of SAMPLE_WORDS words. Depending on its mode, the token is -1, the likeliest of the
 * first `vocab` (the first of equal ones), drawn as in tensor/sample.h with the row's number, or the given one. Penalties
 * come first: pairs [first, first + count) of seen belong to the row, (token, times), ascending by token; tensor/sample.h
 * (sampling_penalty) defines their effect on a logit x, in fp64, rounded to fp32. If a row keeps more candidates than a
 * backend has room for, it may leave the row to the caller: the token is then -2. next is the token if there is one, else 0,
 * so that embed can read it as an id. With wanted = n + 1, n up to K, logprob[r,0] is the token's log-probability under the
 * original logits among the first `vocab`, top[r] are the n likeliest of them in order, and logprob[r,1..n] are theirs; all
 * other numbers of both are 0. A given token from vocab on has -inf; a negative token has 0.
 *
 * kv_put8 and attn_paged8 do the same over a pool of bytes: pool[block,2l,head] is 16 D codes in the same order, followed by
 * 16 fp32 scales, one per position (tensor/kv8.h has the arithmetic). kv_put8 computes them; an element is code * scale. A code is a
 * signed byte or, with attr.e4m3, an e4m3 number.
 *
 * Dropout. With attr.dropout = p each probability of attention is multiplied by m before it is applied to v, where m is 0
 * with probability p and 1 / (1 - p) otherwise; the softmax's sum is computed before. Bits come from an index, in 32-bit
 * unsigned arithmetic with mix and key as for stochastic rounding (below) and the step's scalars (tape/dropout.h is this
 * text in C). Op dropout uses the same m:
 *
 *     row   =   scalars[FIRST_ROW] + b * (1 + scalars[ROW_SKIP])
 *     line  =   mix(key ^ (row * 0x9e3779b1))                     of dropout, whose element i of row b has
 *     line  =   mix(line of dropout ^ (h << 24 ^ query))          of attention, with the query of the bias and i the key
 *     r     =   mix((i * 0x9e3779b1) ^ line)
 *     m     =   0 where r < floor(p 2^32)
 *
 * so micro-batch, recompute, threads, slices and device do not change them.
 *
 * Experts. p is the softmax of a row's logits. Its K largest (the first of equal ones) are the row's experts, largest first;
 * weight is their p, with attr.norm_topk divided by their sum. expert_linear multiplies rows of x sorted by expert and, for
 * one expert, by (r, i): expert e has rows [ends[e-1], ends[e]), ends[E-1] = RK, and place[r,i] is the position of the i-th
 * copy of row r. So shapes never depend on data. dispatch and combine are each other's gradients. For each expert stat has
 * its number of rows and the sum of its p over all rows; its third line begins with the sum over rows of lse^2, where lse
 * is the log of the sum of exp(logits), followed by zeros. With lengths, the rows are those of B rows of tokens, R / B each,
 * and stat excludes padding, which begins at lengths[b]: padding has experts but does not count as load. The order of sums
 * depends only on the shape.
 *
 * router_loss. With n_e, P_e and Z the sums of stat over the layers, R their rows (sum of n_e / attr.top_k) and
 * s = scalars[AUX_GRAD]:
 *
 *     loss  +=   attr.balance * E sum over e of n_e P_e / R^2,  attr.z_loss * Z / R,  1
 *     load  +=   rows of each layer's experts
 *     factor =   s attr.balance E n_e / R^2, and in the second line first s attr.z_loss 2 / R, then zeros
 *
 * so that route_bwd has with D = dweight of the row's experts, 0 of others, t = the sum over them of weight D:
 *
 *     dlogits[e] = attr.norm_topk ? weight[e] (D[e] - t), 0 of others : p[e] (D[e] - t)
 *                  + p[e] (factor[0,e] - sum over j of p[j] factor[0,j]) + factor[1,0] lse p[e]          (this line: 0 of padding)
 *
 * preference. Sample i has rows i and B/2 + i. A row's sequence is its targets (those >= 0); for ORPO only those from position
 * marks[b] on, the others are the prompt's. S is the sum of logp over the sequence, rounded to fp32, n its number of targets, and
 * d = S - reference (S without one). A sample whose first row has no targets is absent. With rule = attr.preference
 * (tape/preference.h has the formulas):
 *
 *     pairs    the sample's loss is preference_pair of (d, n) of both rows
 *     KTO      kl = max(0, mean over samples of d of the second row); the sample's loss is preference_single of (d, n)
 *              of the first row, with good = marks[i] != 0. The second row pairs a prompt with another sample's completion and has no gradient
 *
 *     loss   +=  sum of the samples' losses, number of samples
 *     stat   +=  enum preference_stat; a reward is rule.beta * d, for ORPO rule.beta * S / n
 *     sums    =  S of each row
 *     weight  =  for targets of a sequence - dloss/dS * scalars[SAMPLE_GRAD]; and for all targets of first rows, besides,
 *                rule.nll * scalars[LOSS_GRAD]; 0 elsewhere. So xent with this weight gives the gradient of the mean loss of samples
 *                plus rule.nll times the mean of -log p over the first rows' targets
 *
 * Sums run in fp64, in an order that depends on the shape alone.
 *
 * Rotation (HF's half-rotation): the first E <= D numbers of a head are (x1, x2), their halves; with c and s of the table:
 * (x1 c - x2 s, x2 c + x1 s); back: s := -s. Numbers from E on stay as they are.
 * The master of a bf16 parameter is u16 (see master_split), of an f16 parameter f32; an f32 one has none.
 *
 * Optimizers. g always stands for gradient * coef[MULTIPLIER] (1 without coef); coef[FINITE] == 0 leaves every
 * output as the input was (factor: 1, 1). Per element, in fp32, with lr = scalars[LR] and the attributes beta1, beta2, eps, decay
 * (1 - beta is formed from the decimal number people wrote: round(beta * 1e7) / 1e7, in fp64):
 *
 *     adamw:  p *= 1 - lr decay;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g g
 *             p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)
 *     sgd:    g += decay p;  m = beta1 m + g;  p -= lr (nesterov ? g + beta1 m : m)        without m: p -= lr g
 *
 * Moments (m, v, momentum) are f32 or bf16, all of an op the same. Where p has a master, p here is the master.
 *
 * Stochastic rounding. With attr.stochastic an optimizer op rounds its bf16 moments, and its bf16 parameter when
 * there is no master, up or down at random so that the mean is exact (tensor/stochastic.h is this text in C):
 *
 *     mix(x):   x ^= x >> 16; x *= 0x85ebca6b; x ^= x >> 13; x *= 0xc2b2ae35; x ^= x >> 16
 *     key   =   mix(mix(attr.stream) ^ (scalars[KEY_HIGH] << 16 | scalars[KEY_LOW]))           once per op
 *     i     =   attr.first + position in the operand, modulo 2^32 (first: where this slice begins in the parameter)
 *     r(i)  =   mix((i * 0x9e3779b1) ^ key)
 *     parameter uses the 16 bits r & 0xffff, m (momentum) r >> 16, v (r * 0x9e3779b1) >> 16
 *     bf16  =   (bits of the fp32 value + those 16 bits) >> 16;   NaN: (bits >> 16) | 0x40
 *
 * all in 32-bit unsigned arithmetic. The two scalars are whole numbers below 65536. Other roundings, and all without
 * attr.stochastic, are to nearest even.
 *
 * adamw8. mq and vq are u8 codes, ms and vs f32 with one number for each QUANT8_BLOCK = 256 elements of the flattened
 * parameter (the last block may be short): moment = map[code] * scale of its block, with the signed map for m and the
 * unsigned one for v (tensor/quant8.h has the tables and their formula). The step is adamw's, in fp32 on the
 * moments so decoded. Then for each block and moment: scale = largest |moment| of the block; x = moment * (1 / scale)
 * (0 when scale < 2^-126, and the scale stored then is 0); code = that of the nearest map value, of the one nearer to 0
 * on a tie. One exception: the code of an x above 0 of v is at least 1, because a v that became 0 would turn the next
 * step into m / eps. Zero bytes everywhere are zero moments.
 * Slices of a parameter begin at multiples of 256 elements.
 *
 * Adafactor (transformers' Adafactor with relative_step and scale_parameter off). A parameter of two dimensions [R,C]
 * is factored: row[R] and col[C]. One of one dimension has row[R] = its whole second moment and no col; read C = 1.
 * With b = scalars[BETA2], e = attr.eps, N = R C elements:
 *
 *     factor_stat:  row[i] = b row[i] + (1 - b) mean over j of (g[i,j]^2 + e)
 *                   col[j] = b col[j] + (1 - b) mean over i of (g[i,j]^2 + e)
 *                   factor[FACTOR_MEAN] = mean of row (1 without col)
 *                   u[i,j] = g[i,j] / sqrt(row[i] / factor[FACTOR_MEAN]) / sqrt(col[j])       (without col: / sqrt(row[i]))
 *                   factor[FACTOR_SCALE] = 1 / max(1, rms(u) / attr.limit)
 *     adafactor:    step = lr factor[FACTOR_SCALE] u[i,j];  with m: m = beta1 m + (1 - beta1) step, step = m
 *                   p = p (1 - lr decay) - step
 *
 * Sums over elements are in fp64 or in blocks of fp32, in an order that depends on the shape alone. adafactor may be
 * cut into slices of rows (row is cut alike, col and factor are not); factor_stat may not.
 */
#pragma once

#include "tape/slots.h"
#include "tape/tape.h"

#include <assert.h>
#include <string.h>

/* Positions of a block of keys and values. */
enum { KV_BLOCK = 16 };

enum sample_mode { SAMPLE_NONE, SAMPLE_LIKELIEST, SAMPLE_DRAWN, SAMPLE_AS_GIVEN };

/* A double as two words, the low one first: rows are i32 tensors, whose addresses need not be multiples of
 * 8. */
struct sample_number {
    int32_t low, high;
};

/* One row of sample's SAMPLE_ROWS. */
struct sample_row {
    enum sample_mode mode;
    int32_t vocab;
    int32_t top_k; /* 0: all */
    int32_t given; /* token of SAMPLE_AS_GIVEN */
    struct sample_number temperature, top_p, min_p;
    struct sample_number number; /* in [0,1) */
    struct sample_number repetition, presence, frequency;
    int32_t seen_first, seen_count; /* pairs of seen; count 0: no penalty */
    /* Log-probabilities: the token's and those of wanted - 1 likeliest; 0: none. */
    int32_t wanted;
    int32_t unused;
};
enum { SAMPLE_WORDS = 22 };
static_assert(sizeof(struct sample_row) == SAMPLE_WORDS * sizeof(int32_t), "a row has no gaps");

static inline double sample_double(struct sample_number number)
{
    double x;
    memcpy(&x, &number, sizeof x);
    return x;
}

static inline struct sample_number sample_number(double x)
{
    struct sample_number number;
    memcpy(&number, &x, sizeof number);
    return number;
}

enum { SAMPLED_NONE = -1, SAMPLED_OPEN = -2 }; /* tokens */

/* Every kind of op, and the only list of them: X(KIND, name, kernels). It generates the enum, the names and each backend's
 * table of kernels, so an op without a kernel does not link. kernels is
 *   KERNEL    CPU and CUDA have one: cpu_<name> and cuda_<name>
 *   CPU_ONLY  only the CPU has one so far
 *   COPY      a copy between tiers
 *   NONE      not executed by a kernel */
#define OP_KINDS(X)                                                                                          \
    X(EMBED, embed, KERNEL)                                                                                  \
    X(NORM, norm, KERNEL)                                                                                    \
    X(LINEAR, linear, KERNEL)                                                                                \
    X(ROPE_TABLE, rope_table, KERNEL)                                                                        \
    X(ROPE, rope, KERNEL)                                                                                    \
    X(ATTN, attn, KERNEL)                                                                                    \
    X(GLU, glu, KERNEL)                                                                                      \
    X(ACT, act, KERNEL)                                                                                      \
    X(ADD, add, KERNEL)                                                                                      \
    X(ROW_GATE, row_gate, KERNEL)                                                                            \
    X(ROW_GATE_BWD, row_gate_bwd, KERNEL)                                                                    \
    X(DROPOUT, dropout, KERNEL)                                                                              \
    X(XENT, xent, KERNEL)                                                                                    \
    X(KV_APPEND, kv_append, KERNEL)                                                                          \
    X(SPLIT3, split3, KERNEL)                                                                                \
    X(ROUTE, route, KERNEL)                                                                                  \
    X(DISPATCH, dispatch, KERNEL)                                                                            \
    X(EXPERT_LINEAR, expert_linear, KERNEL)                                                                  \
    X(COMBINE, combine, KERNEL)                                                                              \
    X(ROUTER_LOSS, router_loss, KERNEL)                                                                      \
    X(EMBED_BWD, embed_bwd, KERNEL)                                                                          \
    X(NORM_BWD, norm_bwd, KERNEL)                                                                            \
    X(LINEAR_DX, linear_dx, KERNEL)                                                                          \
    X(LINEAR_DW, linear_dw, KERNEL)                                                                          \
    X(ATTN_BWD, attn_bwd, KERNEL)                                                                            \
    X(GLU_BWD, glu_bwd, KERNEL)                                                                              \
    X(ACT_BWD, act_bwd, KERNEL)                                                                              \
    X(JOIN3, join3, KERNEL)                                                                                  \
    X(POOL, pool, KERNEL)                                                                                    \
    X(POOL_BWD, pool_bwd, KERNEL)                                                                            \
    X(ROUTE_BWD, route_bwd, KERNEL)                                                                          \
    X(EXPERT_LINEAR_DX, expert_linear_dx, KERNEL)                                                            \
    X(EXPERT_LINEAR_DW, expert_linear_dw, KERNEL)                                                            \
    X(COMBINE_DW, combine_dw, KERNEL)                                                                        \
    X(SUMSQ, sumsq, KERNEL)                                                                                  \
    X(CLIP, clip, KERNEL)                                                                                    \
    X(ADAMW, adamw, KERNEL)                                                                                  \
    X(SGD, sgd, KERNEL)                                                                                      \
    X(ADAMW8, adamw8, KERNEL)                                                                                \
    X(FACTOR_STAT, factor_stat, KERNEL)                                                                      \
    X(ADAFACTOR, adafactor, KERNEL)                                                                          \
    X(FETCH, fetch, COPY)                                                                                    \
    X(STORE, store, COPY)                                                                                    \
    X(HOLD, hold, NONE)                                                                                      \
    X(KV_PUT, kv_put, KERNEL)                                                                                \
    X(ATTN_PAGED, attn_paged, KERNEL)                                                                        \
    X(SAMPLE, sample, KERNEL)                                                                                \
    X(KV_PUT8, kv_put8, KERNEL)                                                                              \
    X(ATTN_PAGED8, attn_paged8, KERNEL)                                                                      \
    X(GATHER, gather, NONE)                                                                                  \
    X(REDUCE, reduce, NONE)                                                                                  \
    X(PIECE, piece, NONE)                                                                                    \
    X(SUM, sum, NONE)                                                                                        \
    X(LINEAR_Q, linear_q, KERNEL)                                                                            \
    X(EMBED_Q, embed_q, KERNEL)                                                                              \
    X(EXPERT_LINEAR_Q, expert_linear_q, KERNEL)                                                              \
    X(LINEAR_Q_DX, linear_q_dx, KERNEL)                                                                      \
    X(EXPERT_LINEAR_Q_DX, expert_linear_q_dx, CPU_ONLY)                                                      \
    X(TAKE, take, KERNEL)                                                                                    \
    X(DORA_NORM, dora_norm, KERNEL)                                                                          \
    X(DORA_NORM_Q, dora_norm_q, KERNEL)                                                                      \
    X(COLUMN_SCALE, column_scale, KERNEL)                                                                    \
    X(COLUMN_SCALE_BWD, column_scale_bwd, KERNEL)                                                            \
    X(PREFERENCE, preference, KERNEL)                                                                        \
    X(ADAPTER_LINEAR, adapter_linear, KERNEL)                                                                \
    X(QUANTISE8, quantise8, KERNEL)                                                                          \
    X(LINEAR8, linear8, KERNEL)                                                                              \
    X(LINEAR8_DW, linear8_dw, KERNEL)                                                                        \
    X(LINEAR_F8, linear_f8, KERNEL)

#define OP_KIND_OF(kind, name, kernels) OP_##kind,
enum op_kind { OP_KINDS(OP_KIND_OF) OP_KIND_COUNT };
#undef OP_KIND_OF

/* Name for people and files: "linear_dx". */
const char *op_name(int kind);

/* Kind of work: decides which unit runs an op and what planner and passes may do with it. */
enum op_class {
    OP_CLASS_COMPUTE,    /* forward and backward: a kernel's work; rows that name no class have this one */
    OP_CLASS_UPDATE,     /* the optimizer's: a kernel's work too */
    OP_CLASS_MOVE,       /* a copy between tiers */
    OP_CLASS_HOLD,       /* no work */
    OP_CLASS_COLLECTIVE, /* ranks exchange pieces */
};

/* Cost of an op, for the planner's clock. */
struct op_cost {
    double matmul_flops;
    double attn_flops;
    enum dtype type;   /* of the multiplied operands, if there are flops */
    double bytes;      /* read and written once */
    double link_bytes; /* exchanged between ranks, all pieces together */
    double coded;      /* elements with moments of 8 bits, decoded and encoded again */
    double curved;     /* elements whose activation is computed */
    double widened;  /* bytes read and written where a weight in blocks is made numbers before its product */
    double products; /* with weights, for enough rows that a device may prepare the weight */
    double packed;   /* bytes of rows that such products put into another order first */
    double scores;   /* of attention: exponentials, each with its row's maximum and sum */
    double score_rows; /* rows of scores: begun, divided and written */
    double plain;      /* elements of simple ops, counted as those of a norm */
    double updated;    /* elements of AdamW with moments of 16 or 32 bits */
};

/* Slots of optimizer operands that differ between optimizers; UPDATE_P, UPDATE_G and UPDATE_NEW_P are common. 0, the
 * parameter's own slot: no such operand. */
struct update_slots {
    int m, v, m_scale, v_scale, master, scalars, coef;      /* inputs */
    int new_m, new_v, new_m_scale, new_v_scale, new_master; /* outputs */
};

struct grad_pass;

/* One row of the table.
 *
 * Operand patterns. The first letter is the type: x compute type, f f32, d f64, i i32, m the master of the
 * compute type, j the compute type with twice the elements when attr.joint, w a weight of the compute type or g a gradient of one (dimensions swapped when attr.weight_kn),
 * e a gradient too: both are f32 or the compute type. s is an optimizer's moment or made by an fp8 product: f32 or bf16, all of an
 * op the same; b is e4m3 or e5m2; q is u8; y any type, the same everywhere; * is anything at all. Then the dimensions: letters are bound to sizes and must agree
 * across operands, digits are constants; after '#' only the number of elements is compared, after '%' the number of
 * blocks of QUANT8_BLOCK elements, the last one rounded up. A trailing '?' marks an operand that may be absent.
 *
 * When an update is cut into slices of the parameter's rows, operands with N or R in their pattern are cut too. */
struct op_row {
    enum op_class cls;
    const char *in[OP_MAX_IN], *out[OP_MAX_OUT];
    /* Input whose bytes an output may take over, if their sizes are equal; read by op_shares. */
    int shares[OP_MAX_OUT];
    bool cheap;       /* selective recomputation drops its outputs and runs it again */
    bool together;    /* adjacent ones may run at once if none touches what another writes (group.h) */
    bool writes_kept; /* may write kept tensors outside the update: caches, lower tiers */
    bool whole;       /* an update that must not be cut into slices */
    bool on_cpu; /* the CPU of a device with its own memory computes this update with the device's bits */
    struct update_slots update;
    /* Emits the backward ops (pass_grad.c); NULL: not differentiable. */
    void (*grad)(struct grad_pass *, const struct op *);
    /* Completes the cost; the bytes of every operand are already counted once. NULL: nothing to add. */
    void (*cost)(const struct tape *, const struct op *, struct op_cost *);
};

extern const struct op_row op_rows[OP_KIND_COUNT];
static inline const struct op_row *op_row(int kind) { return &op_rows[kind]; }

/* In a row: .shares = {[ADD_Y] = SHARES(ADD_A)}. Outputs not named share nothing. */
#define SHARES(slot) ((slot) + 1)

/* The input whose bytes output `slot` may take over, -1: none. */
static inline int op_shares(int kind, int slot) { return op_row(kind)->shares[slot] - 1; }

/* Checks arity, types and shapes against the row. PLIM_BUG names the wrong operand. */
enum plim_status op_check(const struct tape *tape, const struct op *op, struct plim_error *err);

/* Sizes by the letters of the row's patterns; 0: a letter that is not used, or that no operand fixes. */
enum { OP_LETTERS = 128 };
void op_sizes(const struct tape *tape, const struct op *op, int64_t size[OP_LETTERS]);

/* bytes[id]: tensor_bytes of the tape's tensors, for callers that ask for all ops; NULL: computed here. */
struct op_cost op_cost_of(const struct tape *tape, const struct op *op, const double *bytes);

/* Causal attention, forward or backward, whose scores are products alone: the case that faster kernels know. */
bool op_attn_is_simple(const struct op *op);

/* Copies between tiers, and their two ends. */
static inline bool op_moves(const struct op *op) { return op_row(op->kind)->cls == OP_CLASS_MOVE; }
static inline int move_near(const struct op *op)
{
    return op->kind == OP_FETCH ? op->out[MOVE_TO] : op->in[MOVE_FROM];
}
static inline int move_far(const struct op *op)
{
    return op->kind == OP_FETCH ? op->in[MOVE_FROM] : op->out[MOVE_TO];
}

/* Bytes of each rank's part that one exchange moves: 4 KiB to 1 MiB, about 16 MiB over all ranks. */
static inline int64_t op_collective_chunk(int64_t ranks)
{
    int64_t chunk = ((int64_t)16 << 20) / ranks / 4096 * 4096;
    return chunk > 1 << 20 ? 1 << 20 : chunk < 4096 ? 4096 : chunk;
}

/* Scratch of reduce and sum of this many bytes: a chunk of each rank's part. */
static inline int64_t op_collective_work(int64_t whole, int64_t ranks)
{
    int64_t piece = ((whole + ranks - 1) / ranks + 15) / 16 * 16, chunk = op_collective_chunk(ranks);
    return ranks * (piece < chunk ? piece : chunk);
}

/* An exchange between ranks. */
static inline bool op_collects(const struct op *op) { return op_row(op->kind)->cls == OP_CLASS_COLLECTIVE; }

/* True for a kernel's work: not a copy, not a hold. */
static inline bool op_computes(const struct op *op)
{
    enum op_class cls = op_row(op->kind)->cls;
    return cls == OP_CLASS_COMPUTE || cls == OP_CLASS_UPDATE;
}
