/* model_configs.h - texts of config.json for test_model.c and test_model_config.c: known models, and beginnings of tiny ones.
 *
 *     struct model_spec spec;
 *     expect_spec(llama_1b, &spec);
 *     expect_spec(LLAMA ",\"rope_theta\":1e6}", &spec);
 */
#ifndef PLIM_TESTS_MODEL_CONFIGS_H
#define PLIM_TESTS_MODEL_CONFIGS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "model/hf.h"
#include <string.h>

static enum plim_status parse(const char *text, struct model_spec *spec, struct plim_error *err)
{
    struct doc *doc;
    enum plim_status status = json_parse(text, strlen(text), "config.json", &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, "config.json", spec, err), doc_free(doc);
    return status;
}

static void expect_spec(const char *text, struct model_spec *spec)
{
    struct plim_error err = {0};
    enum plim_status status = parse(text, spec, &err);
    if (status != PLIM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, PLIM_OK);
}

static const char llama_1b[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":128256,"
    "\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":16,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"head_dim\":64,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"bos_token_id\":128000,"
    "\"eos_token_id\":[128001,128008,128009],\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
    "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}";

static const char llama_70b[] =
    "{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":8192,\"intermediate_size\":28672,"
    "\"num_hidden_layers\":80,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"rope_theta\":500000.0,"
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":8192}";

static const char mistral_7b[] =
    "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"vocab_size\":32000,"
    "\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"sliding_window\":4096,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0}";

static const char qwen2_05b[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":151936,"
    "\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_heads\":14,"
    "\"num_key_value_heads\":2,\"use_sliding_window\":false,\"sliding_window\":32768,\"max_window_layers\":"
    "24,"
    "\"tie_word_embeddings\":true,\"rope_theta\":1000000.0,\"max_position_embeddings\":32768}";

static const char gpt2_small[] =
    "{\"activation_function\":\"gelu_new\",\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.1,"
    "\"bos_token_id\":50256,\"eos_token_id\":50256,\"layer_norm_epsilon\":1e-05,\"model_type\":\"gpt2\","
    "\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,\"n_layer\":12,\"n_positions\":1024,\"vocab_size\":50257}";

static const char bert_labels[] =
    "{\"architectures\":[\"BertForTokenClassification\"],\"model_type\":\"bert\",\"vocab_size\":28996,"
    "\"hidden_size\":768,\"intermediate_size\":3072,\"num_hidden_layers\":12,\"num_attention_heads\":12,"
    "\"max_position_embeddings\":512,\"type_vocab_size\":2,\"hidden_dropout_prob\":0.2,"
    "\"id2label\":{\"0\":\"O\",\"1\":\"B-PER\",\"2\":\"I-PER\"}}";

static const char roberta_base[] =
    "{\"architectures\":[\"RobertaForMaskedLM\"],\"model_type\":\"roberta\",\"vocab_size\":50265,"
    "\"hidden_size\":768,\"intermediate_size\":3072,\"num_hidden_layers\":12,\"num_attention_heads\":12,"
    "\"max_position_embeddings\":514,\"type_vocab_size\":1,\"layer_norm_eps\":1e-05,\"bos_token_id\":0,"
    "\"eos_token_id\":2,\"pad_token_id\":1}";

static const char distilbert_base[] =
    "{\"architectures\":[\"DistilBertForMaskedLM\"],\"model_type\":\"distilbert\",\"vocab_size\":30522,"
    "\"dim\":768,\"hidden_dim\":3072,\"n_layers\":6,\"n_heads\":12,\"max_position_embeddings\":512,"
    "\"activation\":\"gelu\",\"dropout\":0.1,\"attention_dropout\":0.1,\"pad_token_id\":0}";

#define TINY    "\"vocab_size\":64,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4"
#define LLAMA   "{\"model_type\":\"llama\"," TINY ",\"num_attention_heads\":4"
#define QWEN2   "{\"model_type\":\"qwen2\"," TINY ",\"num_attention_heads\":4"
#define MISTRAL "{\"model_type\":\"mistral\"," TINY ",\"num_attention_heads\":8"
#define QWEN3   "{\"model_type\":\"qwen3\"," TINY ",\"num_attention_heads\":4"
#define GEMMA2  "{\"model_type\":\"gemma2\"," TINY ",\"num_attention_heads\":4"
#define GEMMA3  "{\"model_type\":\"gemma3_text\"," TINY ",\"num_attention_heads\":4"
#define PHI3    "{\"model_type\":\"phi3\"," TINY ",\"num_attention_heads\":4"
#define OLMO2   "{\"model_type\":\"olmo2\"," TINY ",\"num_attention_heads\":4"
#define SMOLLM3 "{\"model_type\":\"smollm3\"," TINY ",\"num_attention_heads\":4"
#define GPT2    "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":64,\"n_layer\":2,\"n_head\":4"

#endif
