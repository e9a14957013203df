/* convert_keys.c - see convert_keys.h. */
#include "job/convert_keys.h"

#define PLANNED    "memory is planned, with or without it"
#define KERNELS    "kernels are our own, and chosen by the device"
#define LAUNCHER   "ranks find each other by themselves"
#define LINES      "every step is logged as training.log_every says"
#define NO_HUB     "nothing is uploaded; plimsoll export writes a folder to upload; remove it"
#define IF_HUB     "it counts only with push_to_hub"
#define IF_FSDP    "it counts only with fsdp"
#define GENERATES  "it counts only with predict_with_generate"
#define ALONE      "only the other trainer's program uses it"
#define WHOLE      "write the section adapter into the job instead (docs/adapters.md); remove it"
#define OF_ADAPTER "write it in the section adapter of the job (docs/adapters.md); remove it"
#define QUANTISED  "write model.weights into the job, with an adapter (docs/adapters.md); remove it"
#define FEATURE    "it is not supported; remove it to train without"
#define SHARDS     "write training.zero_stage: 3 (2 for shard_grad_op) into the job instead; remove it"
#define RESUMES    "resume with plimsoll train --resume; remove it"
#define FIELDS                                                                                               \
    "name files and fields instead: data.train, data.prompt_field and others (docs/data.md); remove it"
#define VALIDATES "put them into a separate file and name it in data.validation; remove it"
#define TEMPLATE  "conversations use the model's own template, or data.chat_template; remove it"

/* clang-format off */

/* Names of transformers' TrainingArguments that Axolotl and LLaMA-Factory pass on. */
#define SHARED \
    {"gradient_accumulation_steps", carry_set, "training.gradient_accumulation_steps"}, \
    {"max_steps", carry_positive, "training.steps"}, \
    {"weight_decay", carry_set, "training.weight_decay"}, \
    {"adam_beta1", carry_set, "training.beta1"}, \
    {"adam_beta2", carry_set, "training.beta2"}, \
    {"adam_epsilon", carry_set, "training.eps"}, \
    {"warmup_steps", carry_warmup, "training.warmup_steps"}, \
    {"warmup_ratio", carry_ratio, "training.warmup_ratio"}, \
    {"lr_scheduler_kwargs", carry_kwargs}, \
    {"bf16", carry_precision, "training.bf16"}, \
    {"fp16", carry_asked, "training.fp16"}, \
    {"tf32", carry_asked, "training.tf32"}, \
    {"gradient_checkpointing", carry_asked, "training.gradient_checkpointing"}, \
    {"gradient_checkpointing_kwargs", carry_needless, .text = PLANNED}, \
    {"eval_strategy", carry_eval_strategy, "training.eval_strategy"}, \
    {"evaluation_strategy", carry_eval_strategy, "training.eval_strategy"}, \
    {"eval_steps", carry_positive, "training.eval_every"}, \
    {"save_strategy", carry_set, "training.save_strategy"}, \
    {"save_total_limit", carry_positive, "output.keep_checkpoints"}, \
    {"load_best_model_at_end", carry_asked, "training.load_best_model_at_end"}, \
    {"metric_for_best_model", carry_asked, "training.metric_for_best_model"}, \
    {"greater_is_better", carry_set, "training.greater_is_better"}, \
    {"early_stopping_patience", carry_positive, "training.early_stopping_patience"}, \
    {"early_stopping_threshold", carry_positive, "training.early_stopping_threshold"}, \
    {"logging_steps", carry_positive, "training.log_every"}, \
    {"group_by_length", carry_asked, "data.group_by_length"}, \
    {"dataloader_num_workers", carry_positive, "data.workers"}, \
    {"dataloader_prefetch_factor", carry_positive, "data.prefetch_factor"}, \
    {"dataloader_pin_memory", carry_needless, .text = "a GPU's host memory is pinned already"}, \
    {"dataloader_drop_last", carry_off, .text = "every row is trained; remove it"}, \
    {"dataloader_*", carry_needless, .text = "workers live as long as the run"}, \
    {"torch_compile*", carry_needless, .text = KERNELS}, \
    {"torch_empty_cache_steps", carry_needless, .text = PLANNED}, \
    {"auto_find_batch_size", carry_needless, .text = PLANNED}, \
    {"report_to", carry_report, "training.report_to"}, \
    {"run_name", carry_asked, "training.run_name"}, \
    {"logging_dir", carry_asked, "training.logging_dir"}, \
    {"deepspeed", carry_deepspeed, "training.deepspeed"}, \
    {"fsdp", carry_off, .text = SHARDS}, \
    {"fsdp_*", carry_needless, .text = IF_FSDP}, \
    {"resume_from_checkpoint", carry_off, .text = RESUMES}, \
    {"neftune_noise_alpha", carry_off, .text = FEATURE}, \
    {"remove_unused_columns", carry_needless, .text = "fields are read by their names"}, \
    {"save_safetensors", carry_needless, .text = "checkpoints are safetensors"}, \
    {"save_only_model", carry_needless, .text = "a checkpoint also has the optimizer's state"}, \
    {"trust_remote_code", carry_needless, .text = "no code of a model's folder is run"}, \
    {"ddp_*", carry_needless, .text = LAUNCHER}, \
    {"local_rank", carry_needless, .text = LAUNCHER}, \
    {"full_determinism", carry_asked, "training.deterministic"}, \
    {"output_dir", carry_set, "output.dir"}

static const struct carry training_arguments[] = {
    SHARED,
    {"per_device_train_batch_size", carry_set, "training.batch_size"},
    {"per_gpu_train_batch_size", carry_asked, "training.batch_size"},
    {"train_batch_size", carry_needless, .text = "it is the product of other settings"},
    {"per_device_eval_batch_size", carry_set, "training.eval_batch_size"},
    {"per_gpu_eval_batch_size", carry_asked, "training.eval_batch_size"},
    {"eval_batch_size", carry_set, "training.eval_batch_size"},
    {"num_train_epochs", carry_epochs, "training.epochs", .fallback = "3"},
    {"epochs", carry_epochs, "training.epochs"},
    {"learning_rate", carry_set, "training.learning_rate", .fallback = "5e-5"},
    {"lr_scheduler_type", carry_scheduler, "training.lr_scheduler", .fallback = "linear"},
    {"max_grad_norm", carry_set, "training.max_grad_norm", .fallback = "1"},
    {"optim", carry_set, "training.optimizer"},
    {"optim_args", carry_off, .text = "write training.beta1 and others instead; remove it"},
    {"optim_target_modules", carry_off, .text = FEATURE},
    {"adafactor", carry_off, .text = "write optim: adafactor instead"},
    {"save_steps", carry_positive, "training.save_every", .fallback = "500"},
    {"seed", carry_set, "training.seed", .fallback = "42"},
    {"data_seed", carry_off, .text = "the order of rows follows training.seed; remove it"},
    {"debug", carry_words, "training.debug"},
    {"use_cpu", carry_cpu, "training.device"},
    {"no_cuda", carry_cpu, "training.device"},
    {"use_mps_device", carry_off, .text = "there is no such device here; remove it"},
    {"label_smoothing_factor", carry_off, .text = FEATURE},
    {"sortish_sampler", carry_off, .text = "write group_by_length: true instead"},
    {"train_sampling_strategy", carry_fixed, "random", .text = "rows are shuffled; remove it, or write group_by_length: true"},
    {"ignore_data_skip", carry_off, .text = "a resumed run continues in its data; remove it"},
    {"eval_delay", carry_off, .text = "evaluations begin with training.eval_every; remove it"},
    {"eval_on_start", carry_off, .text = "plimsoll eval measures a model before it is trained; remove it"},
    {"bf16_full_eval", carry_off, .text = "evaluations have the training's precision; remove it"},
    {"fp16_full_eval", carry_off, .text = "evaluations have the training's precision; remove it"},
    {"predict_with_generate", carry_off, .text = "evaluations measure the loss; plimsoll generate answers; remove it"},
    {"generation_*", carry_needless, .text = GENERATES},
    {"push_to_hub", carry_off, .text = NO_HUB},
    {"push_to_hub_*", carry_needless, .text = IF_HUB},
    {"hub_*", carry_needless, .text = IF_HUB},
    {"parallelism_config", carry_off, .text = "write training.zero_stage into the job instead; remove it"},
    {"sharded_ddp", carry_off, .text = SHARDS},
    {"label_names", carry_off, .text = "fields are named in data: (docs/data.md); remove it"},
    {"length_column_name", carry_needless, .text = "lengths are counted"},
    {"average_tokens_across_devices", carry_needless, .text = "gradients are means over the tokens of all ranks"},
    {"prediction_loss_only", carry_needless, .text = "evaluations keep only sums"},
    {"eval_accumulation_steps", carry_needless, .text = "evaluations keep only sums"},
    {"eval_do_concat_batches", carry_needless, .text = "evaluations keep only sums"},
    {"eval_use_gather_object", carry_needless, .text = "evaluations keep only sums"},
    {"batch_eval_metrics", carry_needless, .text = "evaluations keep only sums"},
    {"include_*", carry_needless, .text = LINES},
    {"logging_*", carry_needless, .text = LINES},
    {"log_*", carry_needless, .text = LINES},
    {"disable_tqdm", carry_needless, .text = LINES},
    {"skip_memory_metrics", carry_needless, .text = LINES},
    {"restore_callback_states_from_checkpoint", carry_needless, .text = "a checkpoint has all of the run's state"},
    {"enable_jit_checkpoint", carry_needless, .text = "a signal saves a checkpoint"},
    {"save_on_each_node", carry_needless, .text = "a checkpoint is one folder"},
    {"accelerator_config", carry_needless, .text = LAUNCHER},
    {"split_batches", carry_needless, .text = LAUNCHER},
    {"dispatch_batches", carry_needless, .text = LAUNCHER},
    {"tpu_*", carry_needless, .text = LAUNCHER},
    {"xpu_backend", carry_needless, .text = LAUNCHER},
    {"_n_gpu", carry_needless, .text = LAUNCHER},
    {"mp_parameters", carry_needless, .text = LAUNCHER},
    {"ray_scope", carry_needless, .text = LAUNCHER},
    {"half_precision_backend", carry_needless, .text = KERNELS},
    {"fp16_backend", carry_needless, .text = KERNELS},
    {"fp16_opt_level", carry_needless, .text = KERNELS},
    {"use_liger_kernel", carry_needless, .text = KERNELS},
    {"liger_kernel_config", carry_needless, .text = KERNELS},
    {"use_ipex", carry_needless, .text = KERNELS},
    {"jit_mode_eval", carry_needless, .text = KERNELS},
    {"torchdynamo", carry_needless, .text = KERNELS},
    {"overwrite_output_dir", carry_needless, .text = "train --overwrite does that"},
    {"do_train", carry_needless, .text = ALONE},
    {"do_eval", carry_needless, .text = ALONE},
    {"do_predict", carry_needless, .text = ALONE},
    {"past_index", carry_needless, .text = ALONE},
    {"use_legacy_prediction_loop", carry_needless, .text = ALONE},
    {"project", carry_needless, .text = ALONE},
    {"trackio_*", carry_needless, .text = ALONE},
    /* TRL's SFTConfig and ModelConfig */
    {"model_name_or_path", carry_model, "model.path"},
    {"max_length", carry_set, "data.max_length"},
    {"max_seq_length", carry_set, "data.max_length"},
    {"packing", carry_asked, "data.packing"},
    {"eval_packing", carry_needless, .text = "rows of an evaluation are laid out like those of the training"},
    {"packing_strategy", carry_needless, .text = "attention does not cross packed samples"},
    {"dataset_text_field", carry_asked, "data.field"},
    {"dataset_num_proc", carry_needless, .text = "data.workers read the data"},
    {"use_peft", carry_off, .text = WHOLE},
    {"lora_*", carry_adapter, .text = OF_ADAPTER},
    {"use_rslora", carry_off, .text = OF_ADAPTER},
    {"use_dora", carry_off, .text = OF_ADAPTER},
    {"load_in_4bit", carry_off, .text = QUANTISED},
    {"load_in_8bit", carry_off, .text = QUANTISED},
    {"bnb_4bit_*", carry_adapter, .text = QUANTISED},
};

static const struct carry axolotl[] = {
    SHARED,
    {"base_model", carry_model, "model.path"},
    {"tokenizer_config", carry_set, "data.tokenizer"},
    {"base_model_config", carry_needless, .text = "the model's folder has its config.json"},
    {"model_type", carry_needless, .text = "the model's config.json says it"},
    {"tokenizer_type", carry_needless, .text = "the tokenizer's files say it"},
    {"tokenizer_use_fast", carry_needless, .text = "there is one reader of tokenizers"},
    {"tokenizer_legacy", carry_needless, .text = "there is one reader of tokenizers"},
    {"is_llama_derived_model", carry_needless, .text = "the model's config.json says it"},
    {"is_mistral_derived_model", carry_needless, .text = "the model's config.json says it"},
    {"is_falcon_derived_model", carry_needless, .text = "the model's config.json says it"},
    {"revision_of_model", carry_off, .text = "model.path is a folder; remove it"},
    {"sequence_len", carry_set, "data.max_length", .fallback = "512"},
    {"excess_length_strategy", carry_set, "data.overlong", .fallback = "drop"},
    {"sample_packing", carry_asked, "data.packing"},
    {"eval_sample_packing", carry_needless, .text = "rows of an evaluation are laid out like those of the training"},
    {"sample_packing_*", carry_needless, .text = "rows are filled in the order of samples"},
    {"pad_to_sequence_len", carry_needless, .text = "rows are padded to data.max_length"},
    {"train_on_inputs", carry_off, .text = "write training.completion_only_loss: false, or training.assistant_only_loss: false, into the job; remove it"},
    {"micro_batch_size", carry_set, "training.batch_size", .fallback = "1"},
    {"eval_batch_size", carry_set, "training.eval_batch_size"},
    {"num_epochs", carry_epochs, "training.epochs", .fallback = "1"},
    {"learning_rate", carry_set, "training.learning_rate"},
    {"lr_scheduler", carry_scheduler, "training.lr_scheduler", .fallback = "cosine"},
    {"cosine_min_lr_ratio", carry_floor, "training.min_lr_ratio"},
    {"optimizer", carry_set, "training.optimizer"},
    {"optim_args", carry_off, .text = "write training.beta1 and others instead; remove it"},
    {"max_grad_norm", carry_set, "training.max_grad_norm", .fallback = "1"},
    {"gradient_clipping", carry_set, "training.max_grad_norm"},
    {"flash_attention", carry_asked, "model.use_flash_attention"},
    {"flash_attn_*", carry_needless, .text = KERNELS},
    {"sdp_attention", carry_needless, .text = KERNELS},
    {"xformers_attention", carry_needless, .text = KERNELS},
    {"flex_attention", carry_needless, .text = KERNELS},
    {"eager_attention", carry_eager, "model.use_flash_attention"},
    {"liger_*", carry_needless, .text = KERNELS},
    {"unsloth_*", carry_needless, .text = KERNELS},
    {"cut_cross_entropy", carry_needless, .text = "the loss is computed in slices where the budget asks for it"},
    {"activation_offloading", carry_needless, .text = PLANNED},
    {"save_steps", carry_positive, "training.save_every"},
    {"seed", carry_set, "training.seed", .fallback = "42"},
    {"datasets", carry_datasets, "data.train"},
    {"test_datasets", carry_off, .text = VALIDATES},
    {"val_set_size", carry_off, .text = VALIDATES},
    {"pretraining_dataset", carry_off, .text = "write files into data.train; remove it"},
    {"shuffle_merged_datasets", carry_fixed, "true", .text = "rows are shuffled; remove it"},
    {"dataset_prepared_path", carry_needless, .text = "plimsoll tokenize prepares data"},
    {"dataset_processes", carry_needless, .text = "data.workers read the data"},
    {"dataset_keep_in_memory", carry_needless, .text = "data.workers read the data"},
    {"saves_per_epoch", carry_once_an_epoch, "training.save_strategy"},
    {"evals_per_epoch", carry_once_an_epoch, "training.eval_strategy"},
    {"eval_table_size", carry_needless, .text = "evaluations measure the loss"},
    {"eval_max_new_tokens", carry_needless, .text = "evaluations measure the loss"},
    {"special_tokens", carry_tokens},
    {"chat_template", carry_fixed, "tokenizer_default", .text = TEMPLATE},
    {"auto_resume_from_checkpoints", carry_off, .text = RESUMES},
    {"strict", carry_needless, .text = "a model is always read strictly"},
    {"debug", carry_needless, .text = ALONE},
    {"wandb_project", carry_project, "monitoring.wandb_project"},
    {"wandb_name", carry_asked, "training.run_name"},
    {"wandb_*", carry_needless, .text = "a W&B folder is written for wandb sync"},
    {"hub_model_id", carry_off, .text = NO_HUB},
    {"hub_strategy", carry_needless, .text = IF_HUB},
    {"adapter", carry_off, .text = WHOLE},
    {"load_in_8bit", carry_off, .text = QUANTISED},
    {"load_in_4bit", carry_off, .text = QUANTISED},
    {"gptq", carry_off, .text = QUANTISED},
    {"lora_*", carry_adapter, .text = OF_ADAPTER},
    {"peft*", carry_adapter, .text = OF_ADAPTER},
    {"rl", carry_off, .text = "write training.objective: dpo, kto or orpo into the job instead (docs/preference.md); remove it"},
};

/* LLaMA-Factory passes names of TrainingArguments on. */
static const struct carry llama_factory[] = {
    {"finetuning_type", carry_fixed, "full", .text = WHOLE, .fallback = "lora"},
    {"stage", carry_fixed, "sft", .text = "only sft is converted; for preferences write training.objective into the job (docs/preference.md)"},
    {"cutoff_len", carry_set, "data.max_length", .fallback = "2048"},
    {"neat_packing", carry_asked, "data.packing"},
    {"dataset", carry_files, "data.train", .text = FIELDS},
    {"dataset_dir", carry_needless, .text = "files are named in data.train"},
    {"eval_dataset", carry_files, "data.validation", .text = VALIDATES},
    {"val_size", carry_off, .text = VALIDATES},
    {"max_samples", carry_off, .text = "shorten the file; remove it"},
    {"template", carry_off, .text = TEMPLATE},
    {"train_on_prompt", carry_off, .text = "write training.completion_only_loss: false, or training.assistant_only_loss: false, into the job; remove it"},
    {"mask_history", carry_off, .text = "every answer of a conversation is a target; remove it"},
    {"quantization_*", carry_off, .text = QUANTISED},
    {"adapter_name_or_path", carry_off, .text = OF_ADAPTER},
    {"pure_bf16", carry_off, .text = "write bf16: true, and training.master_weights: none into the job; remove it"},
    {"flash_attn", carry_eager, "model.use_flash_attention"},
    {"overwrite_cache", carry_needless, .text = "plimsoll tokenize prepares data"},
    {"preprocessing_num_workers", carry_needless, .text = "data.workers read the data"},
    {"preprocessing_batch_size", carry_needless, .text = "data.workers read the data"},
    {"plot_loss", carry_needless, .text = "plimsoll watch and report_to: tensorboard show losses"},
    {"enable_liger_kernel", carry_needless, .text = KERNELS},
    {"use_unsloth", carry_needless, .text = KERNELS},
};

#define TABLE(rows) {rows, sizeof(rows) / sizeof *(rows)}

const struct trainer_names trainers[] = {
    {"Axolotl", {"base_model", "sequence_len", "micro_batch_size", "datasets"}, {TABLE(axolotl)}},
    {"LLaMA-Factory", {"finetuning_type", "cutoff_len", "stage", "dataset_dir"}, {TABLE(llama_factory), TABLE(training_arguments)}},
    {"TrainingArguments", {"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "optim", "learning_rate"}, {TABLE(training_arguments)}},
};
/* clang-format on */

const size_t trainer_count = sizeof trainers / sizeof *trainers;
