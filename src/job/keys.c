/* keys.c - every configuration key, once: reading, --set, defaults, checks and docs come from this table. */
#include "job/job.h"

#define AT(field)    offsetof(struct job, field)
#define GIVEN(field) SCHEMA_FLAG(struct job, field)

static const char *const precisions[] = {PRECISION_NAMES, "auto", NULL};
static const struct schema_synonym precision_words[] = {
    {"no", "fp32"},    {"float32", "fp32"}, {"float16", "fp16"}, {"bfloat16", "bf16"},
    {"false", "fp32"}, {"true", "auto"},    {NULL, NULL}};
static const char *const optimizers[] = {"adamw", "sgd", "adamw8bit", "adafactor", NULL};
static const struct schema_synonym optimizer_words[] = {
    {"adamw_8bit", "adamw8bit"},       {"adamw_bnb_8bit", "adamw8bit"},
    {"paged_adamw_8bit", "adamw8bit"}, {"adamw_torch", "adamw"},
    {"adamw_torch_fused", "adamw"},    {"adamw_hf", "adamw"},
    {"adamw_apex_fused", "adamw"},     {"paged_adamw_32bit", "adamw"},
    {"paged_adamw", "adamw"},          {NULL, NULL}};
static const char *const masters[] = {"fp32", "none", NULL};
static const char *const widths[] = {"fp32", "bf16", NULL};
static const char *const matmul_precisions[] = {"highest", "high", "medium", NULL};
static const char *const recomputes[] = {"none", "selective", "full", NULL};
static const char *const tiers[] = {"device", "host", "disk", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", "wsd", "greedy", NULL};
static const struct schema_synonym schedule_words[] = {{"constant_with_warmup", "constant"},
                                                       {"cosine_with_min_lr", "cosine"},
                                                       {"warmup_stable_decay", "wsd"},
                                                       {"greedylr", "greedy"},
                                                       {NULL, NULL}};
static const char *const strategies[] = {"steps", "epoch", "no", NULL};
static const char *const follows[] = {"auto", NULL};
static const char *const greedy_events[] = {"step", "eval", NULL};
static const char *const formats[] = {"auto", "text", "lines", "jsonl", "tokens", NULL};
static const char *const row_kinds[] = {"auto", "stream", "samples", NULL};
static const char *const overlongs[] = {"truncate", "split", "drop", NULL};
static const char *const profiles[] = {"aggressive", "balanced", "conservative", NULL};
static const char *const feed_forwards[] = {"relu", "gated-gelu", NULL};
static const char *const attention_types[] = {"flash", "sliding_window", "sparse", NULL};

static const char *const objectives[] = {
    "auto", "next_token", "masked_tokens", "token_labels", "sentence_pairs", "source_target", NULL};
static const char *const poolings[] = {"mean", "cls", NULL};
static const char *const paddings[] = {"max_length", "longest", "do_not_pad", NULL};
static const struct schema_synonym padding_words[] = {
    {"true", "longest"}, {"false", "do_not_pad"}, {NULL, NULL}};

#define SPARSE "only attention_type: sparse reads it, which is not supported yet"

/* clang-format off */
static const struct schema_row rows[] = {
    /* model */
    {"model.path", SCHEMA_STRING, AT(model.path), .help = "Hugging Face directory (config.json and safetensors) or GGUF file; other keys of the model may only repeat what its config.json says"},
    {"model.architecture", SCHEMA_STRING, AT(model.architecture), .help = "from scratch: llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, smollm3, gpt2, mixtral, qwen3_moe, olmoe, bert, roberta, distilbert or t5"},
    {"model.vocab_size", SCHEMA_INT64, AT(model.vocab_size), .min = 1, .max = 1e9, .help = "vocabulary"},
    {"model.hidden_size", SCHEMA_INT64, AT(model.hidden_size), .min = 1, .max = 1e7, .help = "width of the residual stream"},
    {"model.intermediate_size", SCHEMA_INT64, AT(model.intermediate_size), .min = 1, .max = 1e7, .help = "width of the feed-forward part, or of each expert"},
    {"model.moe_intermediate_size", .alias = "model.intermediate_size"},
    {"model.num_layers", SCHEMA_INT64, AT(model.num_layers), .min = 1, .max = 4096, .help = "number of layers"},
    {"model.num_hidden_layers", .alias = "model.num_layers"},
    {"model.num_decoder_layers", SCHEMA_INT64, AT(model.decoder_layers), .min = 1, .max = 4095, .help = "t5: layers of the decoder; absent: as many as the encoder's num_layers"},
    {"model.feed_forward_proj", SCHEMA_ENUM, AT(model.feed_forward), .flag = GIVEN(model.feed_forward_given), .names = feed_forwards, .fallback = "relu", .help = "t5: relu as in version 1.0, or gated-gelu as in 1.1 and FLAN"},
    {"model.num_attention_heads", SCHEMA_INT64, AT(model.num_heads), .min = 1, .max = 65536, .help = "query heads"},
    {"model.num_key_value_heads", SCHEMA_INT64, AT(model.num_kv_heads), .min = 1, .max = 65536, .help = "key/value heads; absent: as many as query heads"},
    {"model.head_dim", SCHEMA_INT64, AT(model.head_dim), .min = 1, .max = 256, .help = "size of a head; absent: hidden_size / num_attention_heads"},
    {"model.max_position_embeddings", SCHEMA_INT64, AT(model.max_positions), .min = 1, .max = 1e9, .help = "longest position; absent: at least data.max_length"},
    {"model.sliding_window", SCHEMA_INT64, AT(model.sliding_window), .flag = GIVEN(model.window_given), .min = 0, .max = 1e9, .help = "keys a query sees; 0: all; llama, olmo2 and gpt2 have no window; gemma2, gemma3 and smollm3 have it on some layers"},
    {"model.sliding_window_pattern", SCHEMA_INT64, AT(model.window_pattern), .min = 1, .max = 4096, .help = "gemma2, gemma3: every so many layers one sees everything; absent: 2, 6"},
    {"model.rms_norm_eps", SCHEMA_FLOAT, AT(model.norm_eps), .flag = GIVEN(model.eps_given), .min = 0, .max = 1, .help = "epsilon of the norms"},
    {"model.rope_theta", SCHEMA_FLOAT, AT(model.rope_theta), .min = 1, .max = 1e12, .help = "base of the rotary frequencies"},
    {"model.rope_local_base_freq", SCHEMA_FLOAT, AT(model.rope_local_theta), .min = 1, .max = 1e12, .help = "gemma3: base for layers with a window; absent: 10000"},
    {"model.partial_rotary_factor", SCHEMA_FLOAT, AT(model.partial_rotary), .min = 0, .max = 1, .help = "phi3: share of a head that is rotated; absent: all of it"},
    {"model.no_rope_layer_interval", SCHEMA_INT64, AT(model.no_rope_interval), .flag = GIVEN(model.no_rope_given), .min = 0, .max = 4096, .help = "smollm3: every so many layers one rotates nothing; 0: all rotate; absent: 4"},
    {"model.query_pre_attn_scalar", SCHEMA_INT64, AT(model.query_scalar), .min = 1, .max = 1e9, .help = "gemma2, gemma3: scores are divided by its root; absent: the size of a head"},
    {"model.attn_logit_softcapping", SCHEMA_FLOAT, AT(model.attn_cap), .flag = GIVEN(model.attn_cap_given), .min = 0, .max = 1e9, .help = "gemma2: soft-cap of scores; 0: none; absent: 50"},
    {"model.final_logit_softcapping", SCHEMA_FLOAT, AT(model.final_cap), .flag = GIVEN(model.final_cap_given), .min = 0, .max = 1e9, .help = "gemma2, gemma3: soft-cap of logits; 0: none; absent: 30, none"},
    {"model.initializer_range", SCHEMA_FLOAT, AT(model.initializer_range), .flag = GIVEN(model.range_given), .min = 0, .max = 10, .help = "deviation of fresh weights"},
    {"model.dropout", SCHEMA_FLOAT, AT(model.dropout), .flag = GIVEN(model.dropout_given), .min = 0, .max = 1, .help = "every dropout of the model instead of what its config.json says (absent: none from scratch); only training drops numbers"},
    {"model.tie_word_embeddings", SCHEMA_BOOL, AT(model.tie), .flag = GIVEN(model.tie_given), .help = "the output projection is the embedding"},
    {"model.pooling", SCHEMA_ENUM, AT(model.pooling), .flag = GIVEN(model.pooling_given), .names = poolings, .help = "encoders of sentences: a text's vector is the mean of its tokens' or the first one's; absent: as the model's folder says, else mean"},
    {"model.num_experts", SCHEMA_INT64, AT(model.num_experts), .min = 0, .max = 4096, .fallback = "0", .help = "mixtral, qwen3_moe, olmoe: experts of each layer; 0: 8, 128, 64"},
    {"model.num_local_experts", .alias = "model.num_experts"},
    {"model.num_experts_per_tok", SCHEMA_INT64, AT(model.experts_per_token), .min = 1, .max = 4096, .help = "experts of each token; absent: 2, 8, 8"},
    {"model.norm_topk_prob", SCHEMA_BOOL, AT(model.norm_topk), .flag = GIVEN(model.norm_topk_given), .help = "qwen3_moe, olmoe: weights of a token's experts add up to 1; absent: false"},
    {"model.router_aux_loss_coef", SCHEMA_FLOAT, AT(model.balance_coef), .flag = GIVEN(model.balance_given), .min = 0, .max = 1000, .help = "weight of the loss that balances the experts' load, over the micro-batch and all layers; absent: that of config.json where its output_router_logits is true, else none; from scratch 0.001 (olmoe: 0.01)"},
    {"model.router_z_loss_coef", SCHEMA_FLOAT, AT(model.z_coef), .flag = GIVEN(model.z_given), .min = 0, .max = 1000, .help = "weight of the mean square of the routers' log-sum-exp; absent: that of config.json, else none"},
    {"model.use_flash_attention", SCHEMA_BOOL, AT(model.flash), .fallback = "true", .help = "false: attention by plain loops over all scores, for debugging; memory grows with max_length squared"},
    {"model.attention_type", SCHEMA_ENUM, AT(model.attention_type), .names = attention_types, .fallback = "flash", .help = "flash, or sliding_window with model.sliding_window; sparse is not supported yet"},
    {"model.sparse_block_size", .note = SPARSE},
    {"model.num_local_blocks", .note = SPARSE},
    {"model.deepspeed_activation_checkpointing", .alias = "training.deepspeed.activation_checkpointing"},
    /* data */
    {"data.train", SCHEMA_STRING_LIST, AT(train), .help = "training files: paths, folders, globs; .gz and .zst are decompressed"},
    {"data.validation", SCHEMA_STRING_LIST, AT(validation), .help = "evaluation files"},
    {"data.format", SCHEMA_ENUM, AT(data.format), .names = formats, .fallback = "auto", .help = "how files are read; auto: token files by their content, .jsonl and .ndjson by name, all else as text"},
    {"data.tokenizer", SCHEMA_STRING, AT(data.tokenizer), .fallback = "bytes", .help = "how text becomes tokens: a tokenizer.json, a folder with one, or bytes"},
    {"data.max_length", SCHEMA_INT64, AT(max_length), .min = 2, .max = 1e7, .fallback = "256", .help = "tokens of a row"},
    {"data.field", SCHEMA_STRING, AT(data.field), .fallback = "text", .help = "jsonl: the field with the text"},
    {"data.prompt_field", SCHEMA_STRING, AT(data.prompt_field), .help = "jsonl: pairs, of which only the response is learned"},
    {"data.response_field", SCHEMA_STRING, AT(data.response_field), .help = "jsonl: the other half of a pair"},
    {"data.source_field", SCHEMA_STRING, AT(data.source_field), .help = "jsonl: the same for translations and the like: not learned"},
    {"data.target_field", SCHEMA_STRING, AT(data.target_field), .help = "jsonl: learned"},
    {"data.first_field", SCHEMA_STRING, AT(data.first_field), .help = "jsonl: words of token_labels (absent: tokens), or the first text of sentence_pairs (absent: text_a)"},
    {"data.second_field", SCHEMA_STRING, AT(data.second_field), .help = "jsonl: labels of token_labels (absent: labels, or ner_tags), or the second text of sentence_pairs (absent: text_b)"},
    {"data.score_field", SCHEMA_STRING, AT(data.score_field), .fallback = "score", .help = "jsonl: sentence_pairs: how alike the two texts are, a number that evaluation compares with their cosine where records have it"},
    {"data.labels", SCHEMA_STRING_LIST, AT(data.labels), .help = "token_labels: the names of the labels, in the order of their numbers; absent: those of the model's config.json, else all that data.train has, sorted"},
    {"data.max_source_length", SCHEMA_INT64, AT(data.max_source_length), .min = 0, .max = 1e7, .fallback = "0", .help = "source_target: tokens of a source; 0: as data.max_length"},
    {"data.messages_field", SCHEMA_STRING, AT(data.messages_field), .help = "jsonl: conversations ([{role, content}, ...]); what the assistant says is learned"},
    {"data.chat_template", SCHEMA_STRING, AT(data.chat_template), .help = "template of conversations: a .jinja file, tokenizer_config.json or a folder; absent: beside data.tokenizer"},
    {"data.rows", SCHEMA_ENUM, AT(data.rows), .names = row_kinds, .fallback = "auto", .help = "stream: running text cut into full rows; samples: each record begins at position 0; auto: by the kind of data"},
    {"data.packing", SCHEMA_BOOL, AT(data.packing), .fallback = "false", .help = "samples: several short ones share a row, blind to each other"},
    {"data.overlong", SCHEMA_ENUM, AT(data.overlong), .names = overlongs, .fallback = "truncate", .help = "samples longer than a row"},
    {"data.add_special", SCHEMA_BOOL, AT(data.add_special), .fallback = "true", .help = "add what the tokenizer adds to a text, such as a begin mark"},
    {"data.append_eos", SCHEMA_BOOL, AT(data.append_eos), .fallback = "true", .help = "end each document with the tokenizer's end-of-text token, if it has one"},
    {"data.skip_bad", SCHEMA_BOOL, AT(data.skip_bad), .fallback = "false", .help = "count bad records instead of stopping at the first"},
    {"data.max_line_bytes", SCHEMA_BYTES, AT(data.max_line_bytes), .flag = GIVEN(data.max_line_given), .min = 64, .max = 1e12, .fallback = "16MiB", .help = "longest line: the loader has memory for one such, and refuses longer ones by their number; absent: 16 MiB (conversations: 2 MiB, words with labels: 128 KiB), or less where the budget asks for it"},
    {"data.workers", SCHEMA_INT64, AT(data.workers), .flag = GIVEN(data.workers_given), .min = 0, .max = 256, .fallback = "2", .help = "threads that read and tokenise; 0: none but the trainer's; absent: 2, or fewer where the budget asks for it"},
    {"data.num_workers", .alias = "data.workers"},
    {"training.dataloader_num_workers", .alias = "data.workers"},
    {"data.prefetch_factor", SCHEMA_INT64, AT(data.prefetch_factor), .flag = GIVEN(data.prefetch_given), .min = 1, .max = 1024, .fallback = "4", .help = "pieces of 32 KiB read ahead by each worker; absent: 4, or fewer where the budget asks for it"},
    {"data.shuffle_buffer", SCHEMA_INT64, AT(data.shuffle_buffer), .min = 1, .max = 1e9, .fallback = "2048", .help = "streams: samples shuffled together; token files and bytes are always shuffled as a whole"},
    {"data.buffer_size", .alias = "data.shuffle_buffer"},
    {"data.shuffle_bytes", SCHEMA_BYTES, AT(data.shuffle_bytes), .min = 4096, .max = 1e12, .fallback = "4MiB", .help = "the same in bytes of tokens (4 for each); the smaller of both counts"},
    {"data.persistent_workers", .note = "workers always live as long as the run"},
    {"data.padding", SCHEMA_ENUM, AT(data.padding), .names = paddings, .synonyms = padding_words, .fallback = "max_length", .help = "max_length: every row has data.max_length positions; longest: rows of a pass have as many as its longest needs, in up to 8 lengths"},
    {"data.group_by_length", SCHEMA_BOOL, AT(data.group_by_length), .flag = GIVEN(data.group_given), .fallback = "true", .help = "samples of like length share a step, in groups of 32 steps; absent: with padding: longest"},
    {"training.group_by_length", .alias = "data.group_by_length"},
    /* training */
    {"training.preset", SCHEMA_STRING, AT(training.preset), .fallback = "none", .help = "a device of plimsoll plan --list-devices, or auto: the one this device is; its batch_size, gradient_accumulation_steps, mixed_precision and profile hold where the job gives none"},
    {"training.pair_scale", SCHEMA_FLOAT, AT(training.pair_scale), .min = 1e-6, .max = 1e6, .fallback = "20", .help = "sentence_pairs: cosines are multiplied with it in the loss"},
    {"training.objective", SCHEMA_ENUM, AT(training.objective), .names = objectives, .fallback = "auto", .help = "what is learned; auto: what the model is for (docs/data.md)"},
    {"training.batch_size", SCHEMA_INT64, AT(training.batch_size), .flag = GIVEN(training.batch_size_given), .min = 1, .max = 1e6, .fallback = "8", .help = "rows per micro-batch as people count them; the effective batch is this times the accumulation"},
    {"training.per_device_train_batch_size", .alias = "training.batch_size"},
    {"training.gradient_accumulation_steps", SCHEMA_INT64, AT(training.accumulation), .flag = GIVEN(training.accumulation_given), .min = 1, .max = 1e6, .fallback = "1", .help = "multiplies the effective batch; the planner may split it otherwise"},
    {"training.micro_batch_size", SCHEMA_INT64, AT(training.micro_batch), .flag = GIVEN(training.micro_batch_given), .min = 1, .max = 1e6, .help = "pins the rows of a micro-batch"},
    {"training.max_micro_batch_size", SCHEMA_INT64, AT(training.max_micro_batch), .min = 0, .max = 1e6, .fallback = "0", .help = "rows of a micro-batch at most; 0: as many as fit"},
    {"training.steps", SCHEMA_INT64, AT(training.steps), .min = -1, .max = 1e12, .fallback = "100", .help = "optimizer steps; -1: training.epochs counts"},
    {"training.max_steps", .alias = "training.steps"},
    {"training.epochs", SCHEMA_FLOAT, AT(training.epochs), .min = 0, .max = 1e9, .fallback = "0", .help = "so many times over the training data, instead of training.steps; 0: steps count"},
    {"training.num_train_epochs", .alias = "training.epochs"},
    {"training.learning_rate", SCHEMA_FLOAT, AT(schedule.learning_rate), .min = 0, .max = 1000, .fallback = "3e-4", .help = "peak learning rate"},
    {"training.lr_scheduler", SCHEMA_ENUM, AT(schedule.kind), .names = schedules, .synonyms = schedule_words, .fallback = "constant", .help = "how the rate moves"},
    {"training.lr_scheduler_type", .alias = "training.lr_scheduler"},
    {"training.warmup_steps", SCHEMA_INT64, AT(schedule.warmup_steps), .min = 0, .max = 1e12, .fallback = "0", .help = "steps of linear warm-up"},
    {"training.warmup_ratio", SCHEMA_FLOAT, AT(schedule.warmup_ratio), .min = 0, .max = 1, .fallback = "0", .help = "the same as a share of all steps; 0: warmup_steps counts"},
    {"training.decay_steps", SCHEMA_INT64, AT(schedule.decay_steps), .min = 0, .max = 1e12, .fallback = "0", .help = "wsd: the last steps, in which the rate falls; 0: a fifth of all"},
    {"training.min_lr", SCHEMA_FLOAT, AT(schedule.min_lr), .min = 0, .max = 1000, .fallback = "0", .help = "where the rate ends (greedy: its lowest)"},
    {"training.greedy.factor", SCHEMA_FLOAT, AT(schedule.factor), .min = 0, .max = 1, .fallback = "0.99", .help = "greedy: step of the rate"},
    {"training.greedy.patience", SCHEMA_INT64, AT(schedule.patience), .min = 0, .max = 1e9, .fallback = "10", .help = "greedy: steps before it moves"},
    {"training.greedy.threshold", SCHEMA_FLOAT, AT(schedule.threshold), .min = 0, .max = 1e9, .fallback = "1e-6", .help = "greedy: smallest improvement that counts"},
    {"training.greedy.relative", SCHEMA_BOOL, AT(schedule.relative), .fallback = "false", .help = "greedy: the threshold is a share of the best loss"},
    {"training.greedy.cooldown", SCHEMA_INT64, AT(schedule.cooldown), .min = 0, .max = 1e9, .fallback = "0", .help = "greedy: pause after lowering"},
    {"training.greedy.warmup", SCHEMA_INT64, AT(schedule.warmup), .min = 0, .max = 1e9, .fallback = "0", .help = "greedy: pause after raising"},
    {"training.greedy.max_lr", SCHEMA_FLOAT, AT(schedule.max_lr), .min = 0, .max = 1000, .fallback = "1", .help = "greedy: highest rate"},
    {"training.greedy.eps", SCHEMA_FLOAT, AT(schedule.eps), .min = 0, .max = 1, .fallback = "1e-8", .help = "greedy: changes smaller than this are not made"},
    {"training.greedy.smooth", SCHEMA_BOOL, AT(schedule.smooth), .fallback = "false", .help = "greedy: use the mean of the last losses"},
    {"training.greedy.window_size", SCHEMA_INT64, AT(schedule.window_size), .min = 1, .max = 1000, .fallback = "50", .help = "greedy: how many losses the mean takes"},
    {"training.greedy.reset_start", SCHEMA_INT64, AT(schedule.reset_start), .min = 0, .max = 1e9, .fallback = "500", .help = "greedy: lowerings at the floor before it starts anew"},
    {"training.greedy.on", SCHEMA_ENUM, AT(schedule.on), .names = greedy_events, .fallback = "step", .help = "greedy: moves per optimizer step or per evaluation"},
    {"training.mixed_precision", SCHEMA_ENUM, AT(training.precision), .flag = GIVEN(training.precision_given), .names = precisions, .synonyms = precision_words, .fallback = "fp32", .help = "compute type; bf16 and fp16 keep an fp32 master unless training.master_weights says otherwise; auto: bf16 where the device has it, else fp16 on a GPU and fp32 on a CPU"},
    {"training.fp16", SCHEMA_BOOL, AT(training.fp16), .flag = GIVEN(training.fp16_given), .fallback = "false", .help = "the same as mixed_precision: fp16"},
    {"training.bf16", SCHEMA_BOOL, AT(training.bf16), .flag = GIVEN(training.bf16_given), .fallback = "false", .help = "the same as mixed_precision: bf16"},
    {"training.loss_scale", SCHEMA_FLOAT, AT(training.loss_scale), .min = 1, .max = 1e9, .fallback = "65536", .help = "fp16: first loss scale"},
    {"training.loss_scale_window", SCHEMA_INT64, AT(training.loss_scale_window), .min = 1, .max = 1e9, .fallback = "2000", .help = "fp16: good steps before the scale doubles"},
    {"training.optimizer", SCHEMA_ENUM, AT(training.optimizer), .names = optimizers, .synonyms = optimizer_words, .fallback = "adamw", .help = "adamw; sgd; adamw8bit: moments in 8 bits, a scale for every 256 of them; adafactor: second moment by rows and columns"},
    {"optimizer.name", .alias = "training.optimizer"},
    {"training.optim", .alias = "training.optimizer"},
    {"training.master_weights", SCHEMA_ENUM, AT(training.master), .names = masters, .fallback = "fp32", .help = "bf16: fp32 keeps the bits that rounding takes, none rounds weights stochastically and saves 2 bytes for each"},
    {"training.state_dtype", SCHEMA_ENUM, AT(training.state_type), .names = widths, .fallback = "fp32", .help = "type of the optimizer's moments; bf16 is rounded stochastically"},
    {"optimizer.state_dtype", .alias = "training.state_dtype"},
    {"training.grad_dtype", SCHEMA_ENUM, AT(training.grad_type), .names = widths, .fallback = "fp32", .help = "type of parameter gradients; bf16 (with mixed_precision: bf16) rounds them once per op that adds to them"},
    {"training.beta1", SCHEMA_FLOAT, AT(training.beta1), .flag = GIVEN(training.beta1_given), .min = 0, .max = 1, .fallback = "0.9", .help = "first moment (sgd: momentum; adafactor: no first moment unless given)"},
    {"training.adam_beta1", .alias = "training.beta1"},
    {"training.beta2", SCHEMA_FLOAT, AT(training.beta2), .min = 0, .max = 1, .fallback = "0.999", .help = "second moment"},
    {"training.adam_beta2", .alias = "training.beta2"},
    {"training.eps", SCHEMA_FLOAT, AT(training.eps), .min = 0, .max = 1, .fallback = "1e-8", .help = "AdamW epsilon (adafactor: always 1e-30)"},
    {"training.adam_epsilon", .alias = "training.eps"},
    {"training.weight_decay", SCHEMA_FLOAT, AT(training.weight_decay), .min = 0, .max = 100, .fallback = "0", .help = "on parameters of two or more dimensions"},
    {"training.max_grad_norm", SCHEMA_FLOAT, AT(training.clip), .min = 0, .max = 1e9, .fallback = "0", .help = "global-norm clipping; 0: none"},
    {"training.gradient_clipping", .alias = "training.max_grad_norm"},
    {"training.recompute", SCHEMA_ENUM, AT(training.recompute), .flag = GIVEN(training.recompute_given), .names = recomputes, .help = "pins what is recomputed in backward"},
    {"training.recompute_layers", SCHEMA_INT64, AT(training.full_layers), .flag = GIVEN(training.full_layers_given), .min = 0, .max = 4096, .help = "pins how many first layers, behind those that are offloaded, are recomputed in full"},
    {"training.gradient_checkpointing", SCHEMA_BOOL, AT(training.checkpointing), .flag = GIVEN(training.checkpointing_given), .help = "true pins recompute: full, false pins none"},
    {"output.gradient_checkpointing", .alias = "training.gradient_checkpointing"},
    {"training.loss_chunks", SCHEMA_INT64, AT(training.loss_chunks), .flag = GIVEN(training.loss_chunks_given), .min = 1, .max = 4096, .help = "pins the slices of the output projection and loss"},
    {"training.optimizer_in_backward", SCHEMA_BOOL, AT(training.in_backward), .flag = GIVEN(training.in_backward_given), .help = "pins whether parameters are updated during backward (needs accumulation 1, no clipping)"},
    {"training.zero_stage", SCHEMA_INT64, AT(training.zero), .flag = GIVEN(training.zero_given), .min = 0, .max = 3, .help = "pins what each of several ranks has only a piece of: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters"},
    {"training.state_tier", SCHEMA_ENUM, AT(training.state_tier), .flag = GIVEN(training.state_tier_given), .names = tiers, .help = "pins where optimizer state lives: device, or what is below it: disk under a CPU, host under a GPU"},
    {"training.param_tier", SCHEMA_ENUM, AT(training.param_tier), .flag = GIVEN(training.param_tier_given), .names = tiers, .help = "pins where parameters are while no layer needs them: device, disk under a CPU, host under a GPU"},
    {"training.offload_layers", SCHEMA_INT64, AT(training.offload_layers), .flag = GIVEN(training.offload_layers_given), .min = 0, .max = 4096, .help = "pins of how many first layers the activations are offloaded to host memory between forward and backward, under a GPU (beside a pinned training.recompute_layers none are, unless this says so)"},
    {"training.host_update", SCHEMA_FLOAT, AT(training.host_update), .flag = GIVEN(training.host_update_given), .min = 0, .max = 1, .help = "pins the share of updates of state in host memory under a GPU that the CPU makes instead of the GPU (adamw, sgd)"},
    {"training.grad_tier", SCHEMA_ENUM, AT(training.grad_tier), .flag = GIVEN(training.grad_tier_given), .names = tiers, .help = "pins where gradients wait between micro-batches: device, disk under a CPU, host under a GPU"},
    {"training.eval_every", SCHEMA_INT64, AT(training.eval_every), .min = 0, .max = 1e12, .fallback = "0", .help = "steps between evaluations; 0: only at the end"},
    {"training.eval_steps", .alias = "training.eval_every"},
    {"training.eval_strategy", SCHEMA_ENUM, AT(training.eval_strategy), .names = strategies, .fallback = "steps", .help = "steps: as training.eval_every says; epoch: after every epoch; both at the end, too; no: never"},
    {"training.evaluation_strategy", .alias = "training.eval_strategy"},
    {"training.eval_rows", SCHEMA_INT64, AT(training.eval_rows), .min = 1, .max = 1e9, .fallback = "32", .help = "rows of one evaluation"},
    {"training.eval_batch_size", SCHEMA_INT64, AT(training.eval_batch), .min = 0, .max = 1e9, .fallback = "0", .help = "rows of one pass of an evaluation, at most; 0: as many as fit"},
    {"training.per_device_eval_batch_size", .alias = "training.eval_batch_size"},
    {"training.save_every", SCHEMA_INT64, AT(training.save_every), .min = 0, .max = 1e12, .fallback = "0", .help = "steps between checkpoints; 0: only at the end"},
    {"training.save_steps", .alias = "training.save_every"},
    {"training.save_strategy", SCHEMA_ENUM, AT(training.save_strategy), .names = strategies, .fallback = "steps", .help = "steps: as training.save_every says; epoch: after every epoch; both at the end, too; no: only at the end"},
    {"training.debug", SCHEMA_STRING_LIST, AT(training.debug), .help = "underflow_overflow: the first tensor that overflows or underflows is named, as by train --check-numerics (slow)"},
    {"training.report_to", SCHEMA_STRING_LIST, AT(training.report_to), .help = "only none: train --log FILE writes every step as a line of JSON"},
    {"training.log_every", SCHEMA_INT64, AT(training.log_every), .min = 1, .max = 1e9, .fallback = "1", .help = "steps between step lines"},
    {"training.logging_steps", .alias = "training.log_every"},
    {"training.seed", SCHEMA_INT64, AT(training.seed), .min = 0, .max = 9e15, .fallback = "1", .help = "of fresh weights, of the order of rows and of stochastic rounding"},
    {"training.device", SCHEMA_STRING, AT(training.device), .fallback = "auto", .help = "cpu, cuda, cuda:N (the N-th GPU), or auto: a GPU when there is one that works, else the CPU"},
    {"training.deterministic", SCHEMA_BOOL, AT(training.deterministic), .fallback = "false", .help = "cuda: the same bits on every run, at some cost in attention (the CPU always computes so)"},
    {"training.threads", SCHEMA_INT64, AT(training.threads), .min = 0, .max = 1024, .fallback = "0", .help = "CPU threads; 0: one per core"},
    {"training.deepspeed.use_deepspeed", SCHEMA_BOOL, AT(wishes.use_deepspeed), .fallback = "true", .help = "false: the keys of this section are not looked at"},
    {"training.deepspeed.zero_stage", SCHEMA_INT64, AT(wishes.zero_stage), .min = 0, .max = 3, .fallback = "0", .note = "there is one rank, so that a stage has nothing to shard", .help = "what ranks share: 1 optimizer state, 2 gradients, 3 parameters; with one rank without effect, but 3 offloads parameters, too, where cpu_offload or nvme_offload is true"},
    {"training.deepspeed.cpu_offload", SCHEMA_BOOL, AT(wishes.cpu_offload), .fallback = "false", .help = "true: optimizer state (with zero_stage: 3 parameters, too) is offloaded to a GPU's host memory; a CPU has everything there; false: where the budget asks for it"},
    {"training.deepspeed.nvme_offload", SCHEMA_BOOL, AT(wishes.nvme_offload), .fallback = "false", .help = "true: the same to disk, under a CPU; under a GPU write cpu_offload"},
    {"training.deepspeed.activation_checkpointing", SCHEMA_BOOL, AT(wishes.checkpointing), .flag = GIVEN(wishes.checkpointing_given), .fallback = "false", .help = "true is training.gradient_checkpointing: true"},
    {"training.memory.target_utilization", SCHEMA_FLOAT, AT(target), .min = 0.01, .max = 1, .help = "share of memory a plan may take when no budget is given"},
    {"training.memory.warning_threshold", SCHEMA_FLOAT, AT(warning), .min = 0.01, .max = 1, .help = "share at which the status is warning"},
    {"training.memory.critical_threshold", SCHEMA_FLOAT, AT(critical), .min = 0.01, .max = 1, .help = "share at which the status is critical"},
    {"training.memory.emergency_threshold", SCHEMA_FLOAT, AT(emergency), .min = 0.01, .max = 1, .help = "share at which the status is emergency"},
    {"training.memory.silent_mode", SCHEMA_BOOL, AT(monitor.silent), .fallback = "false", .help = "warnings of the monitor are not printed; what it does stays"},
    {"training.memory.pool_size_gb", SCHEMA_FLOAT, AT(wishes.pool_gb), .min = 0, .max = 1e9, .fallback = "0", .help = "a budget in GB (1e9 bytes); the smaller of this and what the budget would be counts; 0: none"},
    {"training.memory.cuda_memory_fraction", SCHEMA_FLOAT, AT(wishes.cuda_fraction), .min = 0, .max = 1, .fallback = "0", .help = "share of a GPU's memory that is the budget when none is given, instead of target_utilization; 0: none; a CPU does not look at it"},
    {"training.memory.enable_cpu_offload", SCHEMA_BOOL, AT(wishes.memory_offload), .fallback = "false", .note = "tensors are offloaded where the budget asks for it, with or without this key", .help = "offloading is allowed; it is the planner's last resort anyway"},
    {"training.memory.clear_cache_frequency", .note = "needless: there is no cache to clear, every byte is planned"},
    {"training.dynamic_batching.enabled", SCHEMA_BOOL, AT(batching.enabled), .fallback = "true", .help = "the micro-batch may become smaller while memory is short, and is restored afterwards; the effective batch stays; false: the keys of this section are not looked at"},
    {"training.dynamic_batching.min_batch_size", SCHEMA_INT64, AT(batching.min), .min = 1, .max = 1e6, .fallback = "1", .help = "rows of a micro-batch at least, in plans, too"},
    {"training.dynamic_batching.max_batch_size", SCHEMA_INT64, AT(batching.max), .min = 0, .max = 1e6, .fallback = "0", .help = "rows of a micro-batch at most, in plans, too; 0: as many as fit"},
    {"training.dynamic_batching.target_memory_utilization", SCHEMA_FLOAT, AT(batching.target), .min = 0, .max = 1, .fallback = "0", .help = "as training.memory.target_utilization; where both are given the smaller one counts; 0: not given"},
    {"training.dynamic_batching.adjustment_frequency", SCHEMA_INT64, AT(batching.every), .min = 1, .max = 1e9, .fallback = "1", .help = "steps between two looks at the memory"},
    {"training.dynamic_batching.smooth_transitions", SCHEMA_BOOL, AT(batching.smooth), .fallback = "true", .help = "the micro-batch moves by one divisor of the effective batch at a time"},
    {"monitoring.enabled", SCHEMA_BOOL, AT(monitor.enabled), .fallback = "true", .help = "memory of device, host and container is watched beside the run"},
    {"monitoring.interval", SCHEMA_FLOAT, AT(monitor.interval), .min = 0.01, .max = 3600, .fallback = "1", .help = "seconds between two readings"},
    {"monitoring.reserve", SCHEMA_BYTES, AT(monitor.reserve), .min = 0, .max = 1e18, .fallback = "0", .help = "with budget: auto, bytes that stay free beside what others take; 0: 5 % of what the device has"},
    {"performance.cuda_graphs", SCHEMA_BOOL, AT(training.cuda_graphs), .fallback = "true", .help = "cuda: a step is recorded once and launched as a whole; false: op by op, slower"},
    {"performance.torch_compile", .note = "needless: kernels are compiled ahead"},
    {"performance.float32_matmul_precision", SCHEMA_ENUM, AT(training.matmul_precision), .flag = GIVEN(training.matmul_given), .names = matmul_precisions, .fallback = "highest", .help = "fp32 training on cuda: highest multiplies in fp32, high and medium in TF32 (the CPU always in fp32)"},
    {"training.tf32", SCHEMA_BOOL, AT(training.tf32), .flag = GIVEN(training.tf32_given), .fallback = "false", .help = "true is performance.float32_matmul_precision: high, false is highest"},
    /* output and budget */
    {"output.dir", SCHEMA_STRING, AT(output_dir), .fallback = "runs/job", .help = "checkpoints and exports"},
    {"output.keep_checkpoints", SCHEMA_INT64, AT(keep_checkpoints), .min = 1, .max = 1000, .fallback = "2", .help = "how many checkpoints stay"},
    {"training.save_total_limit", .alias = "output.keep_checkpoints"},
    {"host_budget", SCHEMA_BYTES, AT(host_budget), .min = 1, .max = 1e18, .help = "bytes of the host that a job on a GPU may take, host tier and program together; absent: what the machine has free"},
    {"budget", SCHEMA_BYTES, AT(budget), .flag = GIVEN(budget_given), .names = follows, .min = 1, .max = 1e18, .help = "bytes the job may take; auto: as absent at the start, and then it follows what others take; absent: what the machine has (or a container's limit), times the profile's target, and on a CPU no more than is free"},
    {"profile", SCHEMA_ENUM, AT(profile), .flag = GIVEN(profile_given), .names = profiles, .fallback = "balanced", .help = "memory profile: shares of memory for the budget and for what the monitor says"},
};

/* clang-format on */

const struct schema job_schema = SCHEMA(rows);
