/* run-tests: not=tsan */
/* test_model_config.c - config.json: what is read of it, what is refused and why, and that what is written says the same. */
#include "model/fields.h"
#include "model_configs.h"

#include <stdio.h>
#include <stdlib.h>

static void known_parameter_counts(void **state)
{
    static const struct {
        const char *config;
        int64_t count;
    } models[] = {{llama_1b, 1235814400},    {llama_70b, 70553706496},   {mistral_7b, 7241732096},
                  {qwen2_05b, 494032768},    {gpt2_small, 124439808},    {bert_labels, 107721987},
                  {roberta_base, 124697433}, {distilbert_base, 66985530}};
    struct model_spec spec;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        expect_spec(models[i].config, &spec);
        assert_int_equal(model_param_count(&spec), models[i].count);
    }
}

static void fields_are_read(void **state)
{
    struct model_spec spec;
    (void)state;
    expect_spec(llama_1b, &spec);
    assert_string_equal(model_architecture_name(spec.arch), "llama");
    assert_int_equal(spec.head_dim, 64);
    assert_int_equal(spec.rope.kind, ROPE_LLAMA3);
    assert_int_equal(spec.eos_count, 3);
    assert_int_equal(spec.eos_token_ids[2], 128009);
    assert_true(spec.norm_eps == 1e-5 && spec.tie_embeddings && !spec.qkv_bias);
    expect_spec(mistral_7b, &spec);
    assert_int_equal(model_layer_window(&spec, 0), 4096);
    assert_false(spec.tie_embeddings);
    expect_spec(qwen2_05b, &spec);
    assert_int_equal(model_layer_window(&spec, 23), 0);
    assert_true(spec.qkv_bias && !spec.o_bias);
    expect_spec(gpt2_small, &spec);
    assert_int_equal(spec.intermediate_size, 3072);
    assert_true(spec.tie_embeddings && !model_uses_rope(&spec));
}

static void variants_are_understood(void **state)
{
    struct model_spec spec;
    (void)state;
    expect_spec(LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}", &spec);
    assert_true(spec.rope_theta == 5e5 && spec.rope.kind == ROPE_NONE);
    expect_spec(LLAMA ",\"rope_theta\":7,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}}",
                &spec);
    assert_true(spec.rope_theta == 7 && spec.rope.kind == ROPE_LINEAR && spec.rope.factor == 2);
    expect_spec(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":8.0},\"rope_parameters\":null}",
                &spec);
    assert_true(spec.rope_theta == 10000 && spec.rope.factor == 8);
    expect_spec(LLAMA
                ",\"num_key_value_heads\":null,\"head_dim\":32,\"attention_bias\":true,\"mlp_bias\":true}",
                &spec);
    assert_true(spec.num_kv_heads == 4 && spec.head_dim == 32 && spec.qkv_bias && spec.o_bias &&
                spec.mlp_bias);
    expect_spec(LLAMA ",\"hidden_act\":\"swish\",\"layer_types\":[\"full_attention\",\"full_attention\","
                      "\"full_attention\",\"full_attention\"],\"eos_token_id\":999}",
                &spec);
    assert_true(spec.sliding_window == 0 && spec.eos_count == 0);
    expect_spec(MISTRAL ",\"sliding_window\":null}", &spec);
    assert_true(spec.sliding_window == 0 && spec.num_kv_heads == 8);
    expect_spec(MISTRAL ",\"num_key_value_heads\":2}", &spec);
    assert_true(spec.sliding_window == 4096 && spec.num_kv_heads == 2);
    expect_spec(QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":3}", &spec);
    assert_true(model_layer_window(&spec, 2) == 0 && model_layer_window(&spec, 3) == 8);
    expect_spec(QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":[\"full_attention\","
                      "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]}",
                &spec);
    assert_true(model_layer_window(&spec, 0) == 0 && model_layer_window(&spec, 1) == 8);
    expect_spec(GEMMA2 ",\"sliding_window\":8}", &spec);
    for (int i = 0; i < 4; i++) assert_int_equal(model_layer_window(&spec, i), i % 2 ? 0 : 8);
    expect_spec("{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":64,\"n_embd\":64,\"n_layer\":2,"
                "\"n_head\":4,\"n_inner\":null,\"n_positions\":32,\"tie_word_embeddings\":false}",
                &spec);
    assert_true(spec.intermediate_size == 256 && !spec.tie_embeddings && spec.bos_token_id == -1);
}

static void refusals_name_the_cause(void **state)
{
    static const struct {
        const char *text, *part;
        enum plim_status status;
    } cases[] = {
        {LLAMA ",\"attention_dropout\":1.5}", "'attention_dropout': 1.5", PLIM_BAD_INPUT},
        {"[]", "expected a map", PLIM_BAD_INPUT},
        {"{}", "'model_type' is missing", PLIM_BAD_INPUT},
        {"{\"model_type\":\"falcon\"}", "'falcon' is not supported; supported: llama", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"qwen4\"}", "'qwen4' is not supported; the nearest is 'qwen2'", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"gemma3\",\"text_config\":{}}", "model type 'gemma3' is not supported",
         PLIM_UNSUPPORTED},
        {"{\"architectures\":[\"T5Model\"]}", "'T5Model' is not supported", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"bert\",\"architectures\":[\"BertForQuestionAnswering\"]}",
         "'BertForMaskedLM' or 'BertForTokenClassification'", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"bert\",\"vocab_size\":8,\"hidden_size\":8,\"num_hidden_layers\":1,"
         "\"num_attention_heads\":2,\"position_embedding_type\":\"relative_key\"}",
         "relative_key is not supported; only absolute", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}",
         "'LlamaForSequenceClassification'", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"llama\"}", "key 'vocab_size' is missing", PLIM_BAD_INPUT},
        {"{\"model_type\":\"llama\"," TINY "}", "key 'num_attention_heads' is missing", PLIM_BAD_INPUT},
        {LLAMA ",\"vocab_size2\":1,\"head_dim\":\"x\"}", "key 'head_dim': expected a whole number",
         PLIM_BAD_INPUT},
        {LLAMA ",\"rms_norm_eps\":\"x\"}", "key 'rms_norm_eps': expected a number", PLIM_BAD_INPUT},
        {LLAMA ",\"tie_word_embeddings\":1}", "expected true or false", PLIM_BAD_INPUT},
        {LLAMA ",\"hidden_act\":\"gelu\"}", "activation 'gelu' is not supported", PLIM_UNSUPPORTED},
        {LLAMA ",\"hidden_act\":3}", "key 'hidden_act': expected a text", PLIM_BAD_INPUT},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4.0}}", "rope type 'dynamic'",
         PLIM_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"beta_slow\":64}}",
         "'beta_fast' 32", PLIM_BAD_INPUT},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,1]}}",
         "'short_factor' has 2 numbers and must have 8", PLIM_BAD_INPUT},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":3}}",
         "key 'short_factor': expected a list", PLIM_BAD_INPUT},
        {PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         "rope type 'linear' is not supported; phi3", PLIM_UNSUPPORTED},
        {PHI3 ",\"partial_rotary_factor\":0.2}", "is 3, and an even number", PLIM_BAD_INPUT},
        {GEMMA3 ",\"attn_logit_softcapping\":50.0}",
         "'attn_logit_softcapping': number is not supported; only null", PLIM_UNSUPPORTED},
        {GEMMA3 ",\"use_bidirectional_attention\":true}", "'use_bidirectional_attention': true",
         PLIM_UNSUPPORTED},
        {GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}}",
         "rope type 'linear' of sliding_attention", PLIM_UNSUPPORTED},
        {GEMMA3 ",\"rope_parameters\":{\"chunked_attention\":{\"rope_type\":\"default\"}}}",
         "('chunked_attention')", PLIM_UNSUPPORTED},
        {GEMMA2 ",\"query_pre_attn_scalar\":0}", "'query_pre_attn_scalar': 0", PLIM_BAD_INPUT},
        {GEMMA2 ",\"attn_logit_softcapping\":-1}",
         "'attn_logit_softcapping': -1 is out of range; it must be from 0", PLIM_BAD_INPUT},
        {SMOLLM3 ",\"no_rope_layers\":[1,0]}", "'no_rope_layers': expected a list of 4", PLIM_BAD_INPUT},
        {QWEN3 ",\"num_key_value_heads\":null,\"head_dim\":258}", "key 'head_dim': heads of 258",
         PLIM_BAD_INPUT},
        {LLAMA ",\"rope_scaling\":3}", "key 'rope_scaling': expected a map", PLIM_BAD_INPUT},
        {LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}", "per layer type",
         PLIM_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0.5}}", "'factor': 0.5",
         PLIM_BAD_INPUT},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "high_freq_factor",
         PLIM_BAD_INPUT},
        {LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor", PLIM_UNSUPPORTED},
        {LLAMA ",\"num_key_value_heads\":3}", "nearest number that does is 2", PLIM_BAD_INPUT},
        {LLAMA ",\"num_key_value_heads\":8}", "'num_key_value_heads': 8", PLIM_BAD_INPUT},
        {LLAMA ",\"head_dim\":15}", "is odd", PLIM_BAD_INPUT},
        {LLAMA ",\"rms_norm_eps\":0}", "'rms_norm_eps'", PLIM_BAD_INPUT},
        {LLAMA ",\"max_position_embeddings\":0}", "key 'max_position_embeddings': 0", PLIM_BAD_INPUT},
        {LLAMA ",\"quantization_config\":{\"quant_method\":\"hqq\"}}", "'hqq' is not read", PLIM_UNSUPPORTED},
        {LLAMA ",\"eos_token_id\":\"x\"}", "key 'eos_token_id'", PLIM_BAD_INPUT},
        {LLAMA ",\"layer_types\":[\"full_attention\"]}", "a list of 4 texts", PLIM_BAD_INPUT},
        {LLAMA
         ",\"layer_types\":[\"chunked_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}",
         "'chunked_attention'", PLIM_UNSUPPORTED},
        {MISTRAL
         ",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"],"
         "\"num_key_value_heads\":8,\"sliding_window\":8}",
         "mistral slides on every layer or none", PLIM_UNSUPPORTED},
        {"{\"model_type\":\"llama\"," TINY ",\"num_attention_heads\":7}", "the nearest number that does is 8",
         PLIM_BAD_INPUT},
        {"{\"model_type\":\"llama\"," TINY ",\"num_attention_heads\":0}", "key 'num_attention_heads': 0",
         PLIM_BAD_INPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":1,\"hidden_size\":64,\"intermediate_size\":96,"
         "\"num_hidden_layers\":4,\"num_attention_heads\":4}",
         "key 'vocab_size': 1 is out of range", PLIM_BAD_INPUT},
        {GPT2 ",\"n_inner\":-3}", "key 'n_inner': -3", PLIM_BAD_INPUT},
        {GPT2 ",\"activation_function\":\"relu\"}", "activation 'relu'", PLIM_UNSUPPORTED},
        {GPT2 ",\"scale_attn_weights\":false}", "scale_attn_weights", PLIM_UNSUPPORTED},
        {GPT2 ",\"head_dim\":8}", "must be 'n_embd' 64", PLIM_BAD_INPUT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_spec spec;
        struct plim_error err = {0};
        enum plim_status status = parse(cases[i].text, &spec, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].part))
            print_error("%s\n  -> %d '%s'\n", cases[i].text, (int)status, err.text);
        assert_int_equal(status, cases[i].status);
        assert_non_null(strstr(err.text, cases[i].part));
        assert_non_null(strstr(err.text, "config.json"));
    }
}

/* What is written is read back as the same model. */
static void configs_round_trip(void **state)
{
    static const char *const texts[] = {
        llama_1b,
        llama_70b,
        mistral_7b,
        qwen2_05b,
        gpt2_small,
        bert_labels,
        roberta_base,
        distilbert_base,
        MISTRAL ",\"sliding_window\":null}",
        QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":3}",
        LLAMA
        ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":8.0},\"head_dim\":32,\"attention_bias\":true}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.5,"
              "\"truncate\":false,\"beta_fast\":16,\"attention_factor\":1.25}}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1.5],"
              "\"long_factor\":[1,2,3,4,5,6,7,8]}}",
        QWEN3 ",\"num_key_value_heads\":2,\"attention_bias\":true}",
        GEMMA2 ",\"attn_logit_softcapping\":null,\"query_pre_attn_scalar\":144}",
        GEMMA3 ",\"rope_local_base_freq\":500,\"sliding_window_pattern\":2,\"rope_scaling\":{\"rope_type\":"
               "\"linear\","
               "\"factor\":8}}",
        PHI3
        ",\"partial_rotary_factor\":0.75,\"sliding_window\":17,\"original_max_position_embeddings\":64,"
        "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1,1,2],\"long_factor\":[1,1,1,1,1,4]}}",
        OLMO2 ",\"tie_word_embeddings\":true}",
        SMOLLM3 ",\"use_sliding_window\":true,\"sliding_window\":9,\"no_rope_layers\":[0,1,1,0]}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct model_spec before, after;
        struct strbuf text = STRBUF_INIT;
        expect_spec(texts[i], &before);
        hf_config_write(&before, DT_BF16, &text);
        assert_non_null(strstr(strbuf_text(&text), "\"torch_dtype\": \"bfloat16\""));
        expect_spec(strbuf_text(&text), &after);
        struct strbuf again = STRBUF_INIT;
        hf_config_write(&after, DT_BF16, &again);
        assert_string_equal(strbuf_text(&text), strbuf_text(&again));
        assert_int_equal(model_param_count(&before), model_param_count(&after));
        assert_memory_equal(before.dropout, after.dropout, sizeof before.dropout);
        strbuf_release(&text);
        strbuf_release(&again);
    }
}

/* One key of a spec set to another value than an architecture's default. */
struct spec_change {
    const char *name;
    void (*make)(struct model_spec *spec);
};

#define CHANGE(name, ...)                                                                                    \
    static void change_##name(struct model_spec *s) { __VA_ARGS__; }
CHANGE(hidden, s->hidden_size = 96, s->head_dim = 0)
CHANGE(heads, s->num_heads = s->num_kv_heads = 8, s->head_dim = 0)
CHANGE(kv_heads, s->num_kv_heads = 2)
CHANGE(head_dim, s->head_dim = 24)
CHANGE(linear, s->rope = (struct rope_scaling){.kind = ROPE_LINEAR, .factor = 2.5})
CHANGE(llama3, s->rope = (struct rope_scaling){ROPE_LLAMA3, 8, 1, 4, 512})
CHANGE(unused, s->rope = (struct rope_scaling){ROPE_LINEAR, 2, 1, 4, 512})
CHANGE(window, s->sliding_window = 7)
CHANGE(no_window, s->sliding_window = 0)
CHANGE(late_window, s->sliding_window = 7, s->full_every = 0, layer_set_add(&s->sliding_layers, 2))
CHANGE(early_window, s->sliding_window = 7, s->full_every = 0, layer_set_add(&s->sliding_layers, 0))
CHANGE(yarn, s->rope = (struct rope_scaling){
                 .kind = ROPE_YARN, .factor = 4, .beta_fast = 20, .beta_slow = 2, .truncate = true})
CHANGE(no_rope, s->no_rope_every = 2)
CHANGE(attention_bias, s->qkv_bias = s->o_bias = true)
CHANGE(no_bias, s->qkv_bias = s->o_bias = s->mlp_bias = false)
CHANGE(half_bias, s->qkv_bias = true, s->o_bias = false)
CHANGE(dropout, s->dropout[0] = 0.25)
CHANGE(dropouts, s->dropout[0] = 0.25, s->dropout[1] = 0.5, s->dropout[2] = 0.75)
CHANGE(no_bos, s->bos_token_id = -1)
CHANGE(eos, s->eos_token_ids[0] = 5, s->eos_token_ids[1] = 6, s->eos_count = 2)
CHANGE(no_eos, s->eos_count = 0)

#define ROW(name)                                                                                            \
    {                                                                                                        \
#name, change_##name                                                                                 \
    }
static const struct spec_change changes[] = {
    ROW(hidden),       ROW(heads),  ROW(kv_heads),       ROW(head_dim), ROW(linear),    ROW(llama3),
    ROW(unused),       ROW(window), ROW(attention_bias), ROW(no_bias),  ROW(half_bias), ROW(dropout),
    ROW(dropouts),     ROW(no_bos), ROW(late_window),    ROW(eos),      ROW(no_eos),    ROW(no_window),
    ROW(early_window), ROW(yarn),   ROW(no_rope),
};

static void small_spec(struct model_spec *spec, const struct architecture *arch)
{
    model_defaults(spec, arch);
    spec->vocab_size = 300, spec->hidden_size = 64, spec->intermediate_size = 128;
    spec->num_layers = 3, spec->num_heads = 4, spec->num_kv_heads = 4;
}

/* A spec that is accepted is written, read back and equal; one that config.json cannot say is refused by name before anything
 * is trained. True: it was accepted. */
static bool is_saved(struct model_spec *spec, const char *change)
{
    struct model_spec back;
    struct strbuf text = STRBUF_INIT;
    struct plim_error err = {0};
    enum plim_status status = model_complete(spec, &err);
    if (status == PLIM_OK) status = hf_config_expresses(spec, &err);
    if (status != PLIM_OK) {
        assert_true(err.text[0] != 0 && strchr(err.text, '\n') == NULL);
        return false;
    }
    hf_config_write(spec, DT_F32, &text);
    expect_spec(strbuf_text(&text), &back);
    const char *lost = model_spec_differs(spec, &back);
    if (lost)
        fail_msg("%s: '%s' is not what was saved: %s", model_architecture_name(spec->arch), change, lost);
    strbuf_release(&text);
    return true;
}

static void every_key_is_saved_or_refused(void **state)
{
    int kept = 0, refused = 0;
    (void)state;
    for (int a = 0; model_architecture_at(a); a++) {
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
            struct model_spec spec;
            small_spec(&spec, model_architecture_at(a));
            changes[i].make(&spec);
            *(is_saved(&spec, changes[i].name) ? &kept : &refused) += 1;
        }
    }
    assert_true(kept > 150 && refused > 50);
}

/* Another number within the row's range; false: there is none that is sure to be a model. */
static bool change_field(const struct model_field *f, struct model_spec *spec)
{
    double value = field_number(f, spec), other = value + 1 <= f->row.max ? value + 1 : f->row.max / 2;
    void *at = field_at(f, spec);
    switch (f->row.kind) {
    case SCHEMA_INT64:
        *(int64_t *)at = (int64_t)other;
        return true;
    case SCHEMA_INT:
        *(int *)at = (int)other;
        return true;
    case SCHEMA_FLOAT:
        *(double *)at = value > f->row.min ? (value + f->row.min) / 2 : (f->row.min + f->row.max) / 2;
        return true;
    case SCHEMA_BOOL:
        *(bool *)at = !*(bool *)at;
        return true;
    default:
        return false;
    }
}

/* Every row of the table, for every architecture: one that config.json has is kept at any value that is a model, and one that
 * it does not have is never lost in silence. */
static void every_row_is_saved_or_refused(void **state)
{
    int kept = 0;
    (void)state;
    for (int a = 0; model_architecture_at(a); a++) {
        for (enum model_field_id id = 0; id < MODEL_FIELDS; id++) {
            const struct model_field *f = &model_fields[id];
            const struct architecture *arch = model_architecture_at(a);
            struct model_spec spec;
            if (f->layer_rule || f->checked_elsewhere || f->rope || f->sparse_only || id == FIELD_EOS)
                continue;
            small_spec(&spec, arch);
            if (!change_field(f, &spec)) continue;
            bool saved = is_saved(&spec, f->row.path);
            if (saved && !field_key(arch, id))
                fail_msg("%s has no %s, which was lost", model_architecture_name(arch), f->row.path);
            kept += saved;
        }
    }
    assert_true(kept > 220);
}

static void a_window_llama_cannot_say_is_refused(void **state)
{
    struct model_spec spec;
    struct plim_error err = {0};
    (void)state;
    small_spec(&spec, model_architecture("llama"));
    spec.sliding_window = 16;
    assert_int_equal(model_complete(&spec, &err), PLIM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sliding_window"));
    assert_non_null(strstr(err.text, "mistral"));
    small_spec(&spec, model_architecture("gpt2"));
    spec.rope_theta = 10000;
    assert_int_equal(model_complete(&spec, &err), PLIM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rope_theta"));
}

/* What is missing is what transformers takes: 0.1 for GPT-2, none for the others. */
static void dropout_is_kept(void **state)
{
    struct model_spec spec;
    const char *key;
    (void)state;
    expect_spec(llama_1b, &spec);
    assert_true(model_dropout(&spec, &key) == 0);
    expect_spec(LLAMA ",\"attention_dropout\":0.25}", &spec);
    assert_true(model_dropout(&spec, &key) == 0.25);
    assert_string_equal(key, "attention_dropout");
    expect_spec(gpt2_small, &spec);
    assert_true(spec.dropout[0] == 0.1 && spec.dropout[1] == 0.1 && spec.dropout[2] == 0.1);
    model_set_dropout(&spec, 0);
    assert_true(model_dropout(&spec, &key) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_parameter_counts),
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(variants_are_understood),
        cmocka_unit_test(refusals_name_the_cause),
        cmocka_unit_test(configs_round_trip),
        cmocka_unit_test(every_key_is_saved_or_refused),
        cmocka_unit_test(every_row_is_saved_or_refused),
        cmocka_unit_test(a_window_llama_cannot_say_is_refused),
        cmocka_unit_test(dropout_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
