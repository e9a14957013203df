/* sentencepiece.c - the protobuf message of a SentencePiece model; sentencepiece_write.c makes a tokenizer.json of it.
 *
 * A message is fields: a number and a wire type, then a varint, 4 or 8 bytes, or a length and so many bytes. Fields that are
 * not known are passed over. The file is not trusted: every length is checked against what is left.
 */
#include "text/sentencepiece.h"
#include "base/file.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LARGEST     ((uint64_t)256 << 20)
#define PIECES_MOST ((size_t)1 << 22)

enum wire { WIRE_VARINT = 0, WIRE_8 = 1, WIRE_BYTES = 2, WIRE_4 = 5 };

struct message {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number;
    enum wire wire;
    uint64_t value;      /* of a varint, or the 4 or 8 bytes */
    struct message body; /* of bytes */
};

static bool read_varint(struct message *m, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        unsigned char byte = *m->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool read_fixed(struct message *m, int bytes, uint64_t *value)
{
    if (m->end - m->at < bytes) return false;
    *value = 0;
    for (int i = 0; i < bytes; i++) *value |= (uint64_t)*m->at++ << (8 * i);
    return true;
}

/* The next field; false: malformed. */
static bool read_field(struct message *m, struct field *f)
{
    uint64_t key;
    if (!read_varint(m, &key)) return false;
    *f = (struct field){.number = key >> 3, .wire = (enum wire)(key & 7)};
    switch (f->wire) {
    case WIRE_VARINT:
        return read_varint(m, &f->value);
    case WIRE_8:
        return read_fixed(m, 8, &f->value);
    case WIRE_4:
        return read_fixed(m, 4, &f->value);
    case WIRE_BYTES:
        if (!read_varint(m, &f->value) || f->value > (uint64_t)(m->end - m->at)) return false;
        f->body = (struct message){m->at, m->at + f->value};
        m->at += f->value;
        return true;
    }
    return false;
}

static bool read_piece(struct sp_model *model, struct message body)
{
    struct sp_piece piece = {.text = "", .type = SP_NORMAL};
    for (struct field f; body.at < body.end;) {
        if (!read_field(&body, &f)) return false;
        if (f.number == 1 && f.wire == WIRE_BYTES)
            piece.text = (const char *)f.body.at, piece.len = (size_t)(f.body.end - f.body.at);
        uint32_t bits = (uint32_t)f.value;
        if (f.number == 2 && f.wire == WIRE_4) memcpy(&piece.score, &bits, sizeof bits);
        if (f.number == 3 && f.wire == WIRE_VARINT) piece.type = (int)f.value;
    }
    if (utf8_valid_prefix(piece.text, piece.len) != piece.len) return false;
    if (piece.score != piece.score || piece.type < SP_NORMAL || piece.type > SP_BYTE) return false;
    model->pieces[model->count++] = piece;
    return true;
}

static bool read_trainer(struct sp_model *model, struct message body)
{
    for (struct field f; body.at < body.end;) {
        if (!read_field(&body, &f)) return false;
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) model->type = (int64_t)f.value;
        if (f.number == 24) model->suffix = f.value;
        if (f.number == 35) model->byte_fallback = f.value;
        if (f.number == 41) model->bos = (int32_t)f.value;
        if (f.number == 42) model->eos = (int32_t)f.value;
    }
    return true;
}

static bool read_normalizer(struct sp_model *model, struct message body)
{
    for (struct field f; body.at < body.end;) {
        if (!read_field(&body, &f)) return false;
        if (f.number == 2 && f.wire == WIRE_BYTES)
            model->char_map = f.body.at, model->char_map_len = (size_t)(f.body.end - f.body.at);
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) model->dummy_prefix = f.value;
        if (f.number == 4) model->trim = f.value;
        if (f.number == 5) model->escape = f.value;
    }
    return true;
}

static bool count_pieces(struct message all, size_t *count)
{
    for (struct field f; all.at < all.end;) {
        if (!read_field(&all, &f)) return false;
        *count += f.number == 1 && f.wire == WIRE_BYTES;
    }
    return *count > 0 && *count <= PIECES_MOST;
}

static bool read_all(struct sp_model *model, struct message all)
{
    for (struct field f; all.at < all.end;) {
        bool good = read_field(&all, &f);
        if (good && f.wire == WIRE_BYTES) {
            if (f.number == 1) good = read_piece(model, f.body);
            if (f.number == 2) good = read_trainer(model, f.body);
            if (f.number == 3) good = read_normalizer(model, f.body);
        }
        if (!good) return false;
    }
    return true;
}

static enum plim_status check_model(struct sp_model *model, struct plim_error *err)
{
    if (model->type != SP_UNIGRAM && model->type != SP_BPE)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: a SentencePiece model of type %s is not supported; Unigram and BPE are",
                         model->path, model->type == 3 ? "word" : "char");
    for (size_t i = 0; i < model->count; i++) {
        if (model->pieces[i].type == SP_UNKNOWN) model->unk = (int64_t)i;
        if (model->pieces[i].type == SP_UNUSED && model->type == SP_BPE)
            return plim_fail(err, PLIM_UNSUPPORTED,
                             "%s: piece %zu is marked unused, which is not supported in a BPE model; give a "
                             "tokenizer.json",
                             model->path, i);
    }
    if (model->bos >= (int64_t)model->count) model->bos = -1;
    if (model->eos >= (int64_t)model->count) model->eos = -1;
    if (model->unk >= 0) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: the SentencePiece model has no unknown piece", model->path);
}

enum plim_status sp_model_read(struct sp_model *model, const char *path, struct plim_error *err)
{
    *model = (struct sp_model){.path = path,
                               .type = SP_UNIGRAM,
                               .unk = -1,
                               .bos = 1,
                               .eos = 2,
                               .dummy_prefix = true,
                               .trim = true,
                               .escape = true};
    enum plim_status status = file_read(path, LARGEST, &model->file, err);
    if (status != PLIM_OK) return status;
    const unsigned char *bytes = (const unsigned char *)strbuf_text(&model->file);
    struct message all = {bytes, bytes + model->file.len};
    size_t count = 0;
    if (!count_pieces(all, &count))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: not a SentencePiece model, or damaged", path);
    model->pieces = calloc(count, sizeof *model->pieces);
    if (!model->pieces) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for %zu pieces", path, count);
    if (!read_all(model, all))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: the SentencePiece model is damaged; fetch it again", path);
    return check_model(model, err);
}

void sp_model_release(struct sp_model *model)
{
    free(model->pieces);
    strbuf_release(&model->file);
    *model = (struct sp_model){0};
}

/* A message whose first field is a piece with a text: 0a LENGTH 0a. JSON may begin with a line break, too, but then a brace
 * follows before anything else. */
bool sentencepiece_is(const char *path)
{
    char head[16] = {0};
    struct stat st;
    FILE *file = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    size_t n = file ? fread(head, 1, sizeof head - 1, file) : 0;
    if (file) fclose(file);
    const char *first = head + strspn(head, " \t\r\n");
    return n > 3 && head[0] == 0x0a && head[2] == 0x0a && *first != '{';
}
