/* fuzz_jsonl.c - any bytes as a line of JSON: fields are found or the line is refused, and the scanner and the JSON
 * reader agree on what is valid. */
#include "base/json.h"
#include "data/json_fields.h"
#include "data/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the reader refuses beyond the grammar. */
static bool is_stricter(const char *text)
{
    return strstr(text, "appears twice") || strstr(text, "out of range");
}

static void agree(const char *line, size_t len, bool valid)
{
    struct doc *doc = NULL;
    struct plim_error err = {0};
    if (len >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) return; /* a mark belongs to files, not to lines */
    bool read = json_parse(line, len, "line", &doc, &err) == PLIM_OK;
    bool object = read && doc->root.kind == NODE_MAP;
    if (valid != object && !(valid && is_stricter(err.text))) {
        fprintf(stderr, "scanner %d, reader %d: %s\n", valid, read, err.text);
        abort();
    }
    doc_free(doc);
}

static void encode(const uint8_t *data, size_t size, enum record_kind kind)
{
    static const struct codec bytes = {.vocab_size = 256, .eos = -1};
    struct record_rules rules = {
        .kind = kind, .field = {"text", "a"}, .codec = &bytes, .append_eos = true, .most = 9};
    struct record_encoder *enc;
    struct token_list tokens = {0};
    char *line = malloc(size + 1);
    if (line && record_encoder_open(&rules, &enc, NULL) == PLIM_OK) {
        memcpy(line, data, size);
        record_encode(enc, line, size, RECORD_WHOLE, &tokens, NULL);
        record_encoder_close(enc);
    }
    token_list_release(&tokens);
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_field fields[2] = {{.name = "text"}, {.name = "a"}};
    struct json_problem problem = {0};
    char *line = malloc(size + 1);
    if (!line) return 0;
    memcpy(line, data, size);
    bool valid = json_fields(line, size, fields, 2, &problem);
    agree(line, size, valid);
    if (!valid && (!problem.what || problem.column > size + 1)) abort();
    for (int i = 0; valid && i < 2; i++) {
        if (fields[i].kind != JSON_TEXT) continue;
        size_t len = json_unescape(fields[i].at, fields[i].len);
        if (len > fields[i].len) abort();
    }
    free(line);
    static const enum record_kind kinds[] = {RECORD_JSON, RECORD_PAIR, RECORD_LINE, RECORD_TEXT};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) encode(data, size, kinds[i]);
    if (size) text_cut((const char *)data, size);
    return 0;
}
