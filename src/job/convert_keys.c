/* convert_keys.c - see convert_keys.h. */
#include "job/convert_keys.h"

#define PLANNED   "memory is planned, with or without it"
#define KERNELS   "kernels are our own, and chosen by the device"
#define LAUNCHER  "ranks find each other by themselves"
#define LINES     "every step is logged as training.log_every says"
#define NO_HUB    "nothing is uploaded; plimsoll export writes a folder to upload; remove it"
#define IF_HUB    "it counts with push_to_hub alone"
#define IF_FSDP   "it counts with fsdp alone"
#define GENERATES "it counts with predict_with_generate alone"
#define ALONE     "it is for the other trainer's program alone"
#define WHOLE                                                                                                \
    "the whole model is trained here, in bf16, fp16 or fp32: that is another training, with another "        \
    "learning rate; remove it"
#define OF_ADAPTER "it belongs to an adapter, and there are none here; remove it"
#define QUANTISED  "weights are trained in bf16, fp16 or fp32; remove it"
#define FEATURE    "there is no such thing here; remove it to train without"
#define SHARDS     "write training.zero_stage: 3 (2 for shard_grad_op) into the job instead; remove it"
#define RESUMES    "a run goes on by plimsoll train --resume; remove it"
#define FIELDS                                                                                               \
    "name files and fields instead: data.train, data.prompt_field and others (docs/data.md); remove it"
#define VALIDATES "write a file of its own into data.validation; remove it"
#define TEMPLATE  "conversations are written by the model's own template, or data.chat_template; remove it"

/* clang-format off */

/* Names of transformers' TrainingArguments that Axolotl and LLaMA-Factory pass on. */
#define SHARED \
    {"gradient_accumulation_steps", CARRY_SET, "training.gradient_accumulation_steps"}, \
    {"max_steps", CARRY_POSITIVE, "training.steps"}, \
    {"weight_decay", CARRY_SET, "training.weight_decay"}, \
    {"adam_beta1", CARRY_SET, "training.beta1"}, \
    {"adam_beta2", CARRY_SET, "training.beta2"}, \
    {"adam_epsilon", CARRY_SET, "training.eps"}, \
    {"warmup_steps", CARRY_WARMUP, "training.warmup_steps"}, \
    {"warmup_ratio", CARRY_RATIO, "training.warmup_ratio"}, \
    {"lr_scheduler_kwargs", CARRY_KWARGS}, \
    {"bf16", CARRY_PRECISION, "training.bf16"}, \
    {"fp16", CARRY_ASKED, "training.fp16"}, \
    {"tf32", CARRY_ASKED, "training.tf32"}, \
    {"gradient_checkpointing", CARRY_ASKED, "training.gradient_checkpointing"}, \
    {"gradient_checkpointing_kwargs", CARRY_NEEDLESS, .text = PLANNED}, \
    {"eval_strategy", CARRY_EVAL_STRATEGY, "training.eval_strategy"}, \
    {"evaluation_strategy", CARRY_EVAL_STRATEGY, "training.eval_strategy"}, \
    {"eval_steps", CARRY_POSITIVE, "training.eval_every"}, \
    {"save_strategy", CARRY_SET, "training.save_strategy"}, \
    {"save_total_limit", CARRY_POSITIVE, "output.keep_checkpoints"}, \
    {"load_best_model_at_end", CARRY_ASKED, "training.load_best_model_at_end"}, \
    {"metric_for_best_model", CARRY_ASKED, "training.metric_for_best_model"}, \
    {"greater_is_better", CARRY_SET, "training.greater_is_better"}, \
    {"early_stopping_patience", CARRY_POSITIVE, "training.early_stopping_patience"}, \
    {"early_stopping_threshold", CARRY_POSITIVE, "training.early_stopping_threshold"}, \
    {"logging_steps", CARRY_POSITIVE, "training.log_every"}, \
    {"group_by_length", CARRY_ASKED, "data.group_by_length"}, \
    {"dataloader_num_workers", CARRY_POSITIVE, "data.workers"}, \
    {"dataloader_prefetch_factor", CARRY_POSITIVE, "data.prefetch_factor"}, \
    {"dataloader_pin_memory", CARRY_NEEDLESS, .text = "a GPU's host memory is pinned already"}, \
    {"dataloader_drop_last", CARRY_OFF, .text = "every row is trained; remove it"}, \
    {"dataloader_*", CARRY_NEEDLESS, .text = "workers live as long as the run"}, \
    {"torch_compile*", CARRY_NEEDLESS, .text = KERNELS}, \
    {"torch_empty_cache_steps", CARRY_NEEDLESS, .text = PLANNED}, \
    {"auto_find_batch_size", CARRY_NEEDLESS, .text = PLANNED}, \
    {"report_to", CARRY_REPORT, "training.report_to"}, \
    {"run_name", CARRY_ASKED, "training.run_name"}, \
    {"logging_dir", CARRY_ASKED, "training.logging_dir"}, \
    {"deepspeed", CARRY_DEEPSPEED, "training.deepspeed"}, \
    {"fsdp", CARRY_OFF, .text = SHARDS}, \
    {"fsdp_*", CARRY_NEEDLESS, .text = IF_FSDP}, \
    {"resume_from_checkpoint", CARRY_OFF, .text = RESUMES}, \
    {"neftune_noise_alpha", CARRY_OFF, .text = FEATURE}, \
    {"remove_unused_columns", CARRY_NEEDLESS, .text = "fields are read by their names"}, \
    {"save_safetensors", CARRY_NEEDLESS, .text = "checkpoints are safetensors"}, \
    {"save_only_model", CARRY_NEEDLESS, .text = "a checkpoint has the optimizer's state besides"}, \
    {"trust_remote_code", CARRY_NEEDLESS, .text = "no code of a model's folder is run"}, \
    {"ddp_*", CARRY_NEEDLESS, .text = LAUNCHER}, \
    {"local_rank", CARRY_NEEDLESS, .text = LAUNCHER}, \
    {"full_determinism", CARRY_ASKED, "training.deterministic"}, \
    {"output_dir", CARRY_SET, "output.dir"}

static const struct carry training_arguments[] = {
    SHARED,
    {"per_device_train_batch_size", CARRY_SET, "training.batch_size"},
    {"per_gpu_train_batch_size", CARRY_ASKED, "training.batch_size"},
    {"train_batch_size", CARRY_NEEDLESS, .text = "it is the product of others"},
    {"per_device_eval_batch_size", CARRY_SET, "training.eval_batch_size"},
    {"per_gpu_eval_batch_size", CARRY_ASKED, "training.eval_batch_size"},
    {"eval_batch_size", CARRY_SET, "training.eval_batch_size"},
    {"num_train_epochs", CARRY_EPOCHS, "training.epochs", .fallback = "3"},
    {"epochs", CARRY_EPOCHS, "training.epochs"},
    {"learning_rate", CARRY_SET, "training.learning_rate", .fallback = "5e-5"},
    {"lr_scheduler_type", CARRY_SCHEDULER, "training.lr_scheduler", .fallback = "linear"},
    {"max_grad_norm", CARRY_SET, "training.max_grad_norm", .fallback = "1"},
    {"optim", CARRY_SET, "training.optimizer"},
    {"optim_args", CARRY_OFF, .text = "write training.beta1 and others instead; remove it"},
    {"optim_target_modules", CARRY_OFF, .text = FEATURE},
    {"adafactor", CARRY_OFF, .text = "write optim: adafactor instead"},
    {"save_steps", CARRY_POSITIVE, "training.save_every", .fallback = "500"},
    {"seed", CARRY_SET, "training.seed", .fallback = "42"},
    {"data_seed", CARRY_OFF, .text = "the order of rows follows training.seed; remove it"},
    {"debug", CARRY_WORDS, "training.debug"},
    {"use_cpu", CARRY_CPU, "training.device"},
    {"no_cuda", CARRY_CPU, "training.device"},
    {"use_mps_device", CARRY_OFF, .text = "there is no such device here; remove it"},
    {"label_smoothing_factor", CARRY_OFF, .text = FEATURE},
    {"sortish_sampler", CARRY_OFF, .text = "write group_by_length: true instead"},
    {"train_sampling_strategy", CARRY_FIXED, "random", .text = "rows are shuffled; remove it, or write group_by_length: true"},
    {"ignore_data_skip", CARRY_OFF, .text = "a resumed run goes on in its data; remove it"},
    {"eval_delay", CARRY_OFF, .text = "evaluations begin with training.eval_every; remove it"},
    {"eval_on_start", CARRY_OFF, .text = "plimsoll eval measures a model before it is trained; remove it"},
    {"bf16_full_eval", CARRY_OFF, .text = "evaluations have the training's precision; remove it"},
    {"fp16_full_eval", CARRY_OFF, .text = "evaluations have the training's precision; remove it"},
    {"predict_with_generate", CARRY_OFF, .text = "evaluations measure the loss; plimsoll generate answers; remove it"},
    {"generation_*", CARRY_NEEDLESS, .text = GENERATES},
    {"push_to_hub", CARRY_OFF, .text = NO_HUB},
    {"push_to_hub_*", CARRY_NEEDLESS, .text = IF_HUB},
    {"hub_*", CARRY_NEEDLESS, .text = IF_HUB},
    {"parallelism_config", CARRY_OFF, .text = "write training.zero_stage into the job instead; remove it"},
    {"sharded_ddp", CARRY_OFF, .text = SHARDS},
    {"label_names", CARRY_OFF, .text = "fields are named in data: (docs/data.md); remove it"},
    {"length_column_name", CARRY_NEEDLESS, .text = "lengths are counted"},
    {"average_tokens_across_devices", CARRY_NEEDLESS, .text = "gradients are means over the tokens of all ranks"},
    {"prediction_loss_only", CARRY_NEEDLESS, .text = "evaluations keep sums alone"},
    {"eval_accumulation_steps", CARRY_NEEDLESS, .text = "evaluations keep sums alone"},
    {"eval_do_concat_batches", CARRY_NEEDLESS, .text = "evaluations keep sums alone"},
    {"eval_use_gather_object", CARRY_NEEDLESS, .text = "evaluations keep sums alone"},
    {"batch_eval_metrics", CARRY_NEEDLESS, .text = "evaluations keep sums alone"},
    {"include_*", CARRY_NEEDLESS, .text = LINES},
    {"logging_*", CARRY_NEEDLESS, .text = LINES},
    {"log_*", CARRY_NEEDLESS, .text = LINES},
    {"disable_tqdm", CARRY_NEEDLESS, .text = LINES},
    {"skip_memory_metrics", CARRY_NEEDLESS, .text = LINES},
    {"restore_callback_states_from_checkpoint", CARRY_NEEDLESS, .text = "a checkpoint has all of the run's state"},
    {"enable_jit_checkpoint", CARRY_NEEDLESS, .text = "a signal saves a checkpoint"},
    {"save_on_each_node", CARRY_NEEDLESS, .text = "a checkpoint is one folder"},
    {"accelerator_config", CARRY_NEEDLESS, .text = LAUNCHER},
    {"split_batches", CARRY_NEEDLESS, .text = LAUNCHER},
    {"dispatch_batches", CARRY_NEEDLESS, .text = LAUNCHER},
    {"tpu_*", CARRY_NEEDLESS, .text = LAUNCHER},
    {"xpu_backend", CARRY_NEEDLESS, .text = LAUNCHER},
    {"_n_gpu", CARRY_NEEDLESS, .text = LAUNCHER},
    {"mp_parameters", CARRY_NEEDLESS, .text = LAUNCHER},
    {"ray_scope", CARRY_NEEDLESS, .text = LAUNCHER},
    {"half_precision_backend", CARRY_NEEDLESS, .text = KERNELS},
    {"fp16_backend", CARRY_NEEDLESS, .text = KERNELS},
    {"fp16_opt_level", CARRY_NEEDLESS, .text = KERNELS},
    {"use_liger_kernel", CARRY_NEEDLESS, .text = KERNELS},
    {"liger_kernel_config", CARRY_NEEDLESS, .text = KERNELS},
    {"use_ipex", CARRY_NEEDLESS, .text = KERNELS},
    {"jit_mode_eval", CARRY_NEEDLESS, .text = KERNELS},
    {"torchdynamo", CARRY_NEEDLESS, .text = KERNELS},
    {"overwrite_output_dir", CARRY_NEEDLESS, .text = "train --overwrite does that"},
    {"do_train", CARRY_NEEDLESS, .text = ALONE},
    {"do_eval", CARRY_NEEDLESS, .text = ALONE},
    {"do_predict", CARRY_NEEDLESS, .text = ALONE},
    {"past_index", CARRY_NEEDLESS, .text = ALONE},
    {"use_legacy_prediction_loop", CARRY_NEEDLESS, .text = ALONE},
    {"project", CARRY_NEEDLESS, .text = ALONE},
    {"trackio_*", CARRY_NEEDLESS, .text = ALONE},
    /* TRL's SFTConfig and ModelConfig */
    {"model_name_or_path", CARRY_MODEL, "model.path"},
    {"max_length", CARRY_SET, "data.max_length"},
    {"max_seq_length", CARRY_SET, "data.max_length"},
    {"packing", CARRY_ASKED, "data.packing"},
    {"eval_packing", CARRY_NEEDLESS, .text = "rows of an evaluation are laid out like those of the training"},
    {"packing_strategy", CARRY_NEEDLESS, .text = "packed samples are blind to each other"},
    {"dataset_text_field", CARRY_ASKED, "data.field"},
    {"dataset_num_proc", CARRY_NEEDLESS, .text = "data.workers read the data"},
    {"use_peft", CARRY_OFF, .text = WHOLE},
    {"lora_*", CARRY_ADAPTER, .text = OF_ADAPTER},
    {"use_rslora", CARRY_OFF, .text = OF_ADAPTER},
    {"use_dora", CARRY_OFF, .text = OF_ADAPTER},
    {"load_in_4bit", CARRY_OFF, .text = QUANTISED},
    {"load_in_8bit", CARRY_OFF, .text = QUANTISED},
    {"bnb_4bit_*", CARRY_ADAPTER, .text = QUANTISED},
};

static const struct carry axolotl[] = {
    SHARED,
    {"base_model", CARRY_MODEL, "model.path"},
    {"tokenizer_config", CARRY_SET, "data.tokenizer"},
    {"base_model_config", CARRY_NEEDLESS, .text = "the model's folder has its config.json"},
    {"model_type", CARRY_NEEDLESS, .text = "the model's config.json says it"},
    {"tokenizer_type", CARRY_NEEDLESS, .text = "the tokenizer's files say it"},
    {"tokenizer_use_fast", CARRY_NEEDLESS, .text = "there is one reader of tokenizers"},
    {"tokenizer_legacy", CARRY_NEEDLESS, .text = "there is one reader of tokenizers"},
    {"is_llama_derived_model", CARRY_NEEDLESS, .text = "the model's config.json says it"},
    {"is_mistral_derived_model", CARRY_NEEDLESS, .text = "the model's config.json says it"},
    {"is_falcon_derived_model", CARRY_NEEDLESS, .text = "the model's config.json says it"},
    {"revision_of_model", CARRY_OFF, .text = "model.path is a folder; remove it"},
    {"sequence_len", CARRY_SET, "data.max_length", .fallback = "512"},
    {"excess_length_strategy", CARRY_SET, "data.overlong", .fallback = "drop"},
    {"sample_packing", CARRY_ASKED, "data.packing"},
    {"eval_sample_packing", CARRY_NEEDLESS, .text = "rows of an evaluation are laid out like those of the training"},
    {"sample_packing_*", CARRY_NEEDLESS, .text = "rows are filled as the samples come"},
    {"pad_to_sequence_len", CARRY_NEEDLESS, .text = "rows are padded to data.max_length"},
    {"train_on_inputs", CARRY_OFF, .text = "of pairs and conversations the answers are learned; remove it"},
    {"micro_batch_size", CARRY_SET, "training.batch_size", .fallback = "1"},
    {"eval_batch_size", CARRY_SET, "training.eval_batch_size"},
    {"num_epochs", CARRY_EPOCHS, "training.epochs", .fallback = "1"},
    {"learning_rate", CARRY_SET, "training.learning_rate"},
    {"lr_scheduler", CARRY_SCHEDULER, "training.lr_scheduler", .fallback = "cosine"},
    {"cosine_min_lr_ratio", CARRY_FLOOR, "training.min_lr_ratio"},
    {"optimizer", CARRY_SET, "training.optimizer"},
    {"optim_args", CARRY_OFF, .text = "write training.beta1 and others instead; remove it"},
    {"max_grad_norm", CARRY_SET, "training.max_grad_norm", .fallback = "1"},
    {"gradient_clipping", CARRY_SET, "training.max_grad_norm"},
    {"flash_attention", CARRY_ASKED, "model.use_flash_attention"},
    {"flash_attn_*", CARRY_NEEDLESS, .text = KERNELS},
    {"sdp_attention", CARRY_NEEDLESS, .text = KERNELS},
    {"xformers_attention", CARRY_NEEDLESS, .text = KERNELS},
    {"flex_attention", CARRY_NEEDLESS, .text = KERNELS},
    {"eager_attention", CARRY_EAGER, "model.use_flash_attention"},
    {"liger_*", CARRY_NEEDLESS, .text = KERNELS},
    {"unsloth_*", CARRY_NEEDLESS, .text = KERNELS},
    {"cut_cross_entropy", CARRY_NEEDLESS, .text = "the loss is computed in slices where the budget asks for it"},
    {"activation_offloading", CARRY_NEEDLESS, .text = PLANNED},
    {"save_steps", CARRY_POSITIVE, "training.save_every"},
    {"seed", CARRY_SET, "training.seed", .fallback = "42"},
    {"datasets", CARRY_DATASETS, "data.train"},
    {"test_datasets", CARRY_OFF, .text = VALIDATES},
    {"val_set_size", CARRY_OFF, .text = VALIDATES},
    {"pretraining_dataset", CARRY_OFF, .text = "write files into data.train; remove it"},
    {"shuffle_merged_datasets", CARRY_FIXED, "true", .text = "rows are shuffled; remove it"},
    {"dataset_prepared_path", CARRY_NEEDLESS, .text = "plimsoll tokenize prepares data"},
    {"dataset_processes", CARRY_NEEDLESS, .text = "data.workers read the data"},
    {"dataset_keep_in_memory", CARRY_NEEDLESS, .text = "data.workers read the data"},
    {"saves_per_epoch", CARRY_ONCE_AN_EPOCH, "training.save_strategy"},
    {"evals_per_epoch", CARRY_ONCE_AN_EPOCH, "training.eval_strategy"},
    {"eval_table_size", CARRY_NEEDLESS, .text = "evaluations measure the loss"},
    {"eval_max_new_tokens", CARRY_NEEDLESS, .text = "evaluations measure the loss"},
    {"special_tokens", CARRY_TOKENS},
    {"chat_template", CARRY_FIXED, "tokenizer_default", .text = TEMPLATE},
    {"auto_resume_from_checkpoints", CARRY_OFF, .text = RESUMES},
    {"strict", CARRY_NEEDLESS, .text = "a model is always read strictly"},
    {"debug", CARRY_NEEDLESS, .text = ALONE},
    {"wandb_project", CARRY_PROJECT, "monitoring.wandb_project"},
    {"wandb_name", CARRY_ASKED, "training.run_name"},
    {"wandb_*", CARRY_NEEDLESS, .text = "a W&B folder is written for wandb sync"},
    {"hub_model_id", CARRY_OFF, .text = NO_HUB},
    {"hub_strategy", CARRY_NEEDLESS, .text = IF_HUB},
    {"adapter", CARRY_OFF, .text = WHOLE},
    {"load_in_8bit", CARRY_OFF, .text = QUANTISED},
    {"load_in_4bit", CARRY_OFF, .text = QUANTISED},
    {"gptq", CARRY_OFF, .text = QUANTISED},
    {"lora_*", CARRY_ADAPTER, .text = OF_ADAPTER},
    {"peft*", CARRY_ADAPTER, .text = OF_ADAPTER},
    {"rl", CARRY_OFF, .text = "there is no preference training here; remove it"},
};

/* LLaMA-Factory passes names of TrainingArguments on. */
static const struct carry llama_factory[] = {
    {"finetuning_type", CARRY_FIXED, "full", .text = WHOLE, .fallback = "lora"},
    {"stage", CARRY_FIXED, "sft", .text = "write sft, and what is learned follows from the data (docs/data.md)"},
    {"cutoff_len", CARRY_SET, "data.max_length", .fallback = "2048"},
    {"neat_packing", CARRY_ASKED, "data.packing"},
    {"dataset", CARRY_FILES, "data.train", .text = FIELDS},
    {"dataset_dir", CARRY_NEEDLESS, .text = "files are named in data.train"},
    {"eval_dataset", CARRY_FILES, "data.validation", .text = VALIDATES},
    {"val_size", CARRY_OFF, .text = VALIDATES},
    {"max_samples", CARRY_OFF, .text = "cut the file before; remove it"},
    {"template", CARRY_OFF, .text = TEMPLATE},
    {"train_on_prompt", CARRY_OFF, .text = "of pairs and conversations the answers are learned; remove it"},
    {"mask_history", CARRY_OFF, .text = "of a conversation every answer is learned; remove it"},
    {"quantization_*", CARRY_OFF, .text = QUANTISED},
    {"adapter_name_or_path", CARRY_OFF, .text = OF_ADAPTER},
    {"pure_bf16", CARRY_OFF, .text = "write bf16: true, and training.master_weights: none into the job; remove it"},
    {"flash_attn", CARRY_EAGER, "model.use_flash_attention"},
    {"overwrite_cache", CARRY_NEEDLESS, .text = "plimsoll tokenize prepares data"},
    {"preprocessing_num_workers", CARRY_NEEDLESS, .text = "data.workers read the data"},
    {"preprocessing_batch_size", CARRY_NEEDLESS, .text = "data.workers read the data"},
    {"plot_loss", CARRY_NEEDLESS, .text = "plimsoll watch and report_to: tensorboard show losses"},
    {"enable_liger_kernel", CARRY_NEEDLESS, .text = KERNELS},
    {"use_unsloth", CARRY_NEEDLESS, .text = KERNELS},
};

#define TABLE(rows) {rows, sizeof(rows) / sizeof *(rows)}

const struct trainer_names trainers[] = {
    {"Axolotl", {"base_model", "sequence_len", "micro_batch_size", "datasets"}, {TABLE(axolotl)}},
    {"LLaMA-Factory", {"finetuning_type", "cutoff_len", "stage", "dataset_dir"}, {TABLE(llama_factory), TABLE(training_arguments)}},
    {"TrainingArguments", {"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "optim", "learning_rate"}, {TABLE(training_arguments)}},
};
/* clang-format on */

const size_t trainer_count = sizeof trainers / sizeof *trainers;
