/* pickle.c - opcodes of protocol 2, as in Python's Lib/pickletools.py. See pickle.h.
 *
 * A list is EMPTY_LIST MARK item... APPENDS, a dictionary EMPTY_DICT MARK key value ... SETITEMS. */
#include "base/pickle.h"

#include <assert.h>
#include <string.h>

enum opcode {
    PROTO = 0x80,
    STOP = '.',
    MARK = '(',
    EMPTY_DICT = '}',
    SETITEMS = 'u',
    EMPTY_LIST = ']',
    APPENDS = 'e',
    BININT = 'J',
    LONG1 = 0x8a,
    BINFLOAT = 'G',
    BINUNICODE = 'X',
    TUPLE2 = 0x86,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG_BINPUT = 'r',
    LONG_BINGET = 'j',
};

enum { DICT = -1, BATCH = 1000 };

static void put_op(struct pickle_writer *w, enum opcode op) { strbuf_addc(w->out, (char)op); }

static void put_bytes(struct pickle_writer *w, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) strbuf_addc(w->out, (char)(value >> (8 * i) & 0xff));
}

static void put_text(struct pickle_writer *w, const char *text)
{
    size_t len = strlen(text);
    put_op(w, BINUNICODE);
    put_bytes(w, len, 4);
    strbuf_addn(w->out, text, len);
}

/* The key of an entry; or another item of a list, after those before it are handed over where they are many. */
static void entry(struct pickle_writer *w, const char *key)
{
    if (key) put_text(w, key);
    if (w->depth == 0) return;
    int *items = &w->items[w->depth - 1];
    assert((*items == DICT) == (key != NULL));
    if (*items == DICT) return;
    if (*items == BATCH) {
        put_op(w, APPENDS);
        put_op(w, MARK);
        *items = 0;
    }
    ++*items;
}

static void begin(struct pickle_writer *w, const char *key, enum opcode empty, int items)
{
    assert(w->depth < PICKLE_DEPTH);
    entry(w, key);
    w->items[w->depth++] = items;
    put_op(w, empty);
    put_op(w, MARK);
}

static void end(struct pickle_writer *w, enum opcode op)
{
    assert(w->depth > 0);
    w->depth--;
    put_op(w, op);
}

void pickle_writer_init(struct pickle_writer *w, struct strbuf *out)
{
    *w = (struct pickle_writer){.out = out};
    put_op(w, PROTO);
    put_bytes(w, 2, 1);
}

void pickle_end(struct pickle_writer *w)
{
    assert(w->depth == 0);
    put_op(w, STOP);
}

void pickle_begin_dict(struct pickle_writer *w, const char *key) { begin(w, key, EMPTY_DICT, DICT); }
void pickle_end_dict(struct pickle_writer *w) { end(w, SETITEMS); }
void pickle_begin_list(struct pickle_writer *w, const char *key) { begin(w, key, EMPTY_LIST, 0); }
void pickle_end_list(struct pickle_writer *w) { end(w, APPENDS); }

/* Writes a large number in as many bytes as it needs, with its sign. */
static void put_int(struct pickle_writer *w, int64_t value)
{
    int bytes = 5;
    if (value >= INT32_MIN && value <= INT32_MAX) {
        put_op(w, BININT);
        put_bytes(w, (uint64_t)value, 4);
        return;
    }
    while (bytes < 8 && (value < -((int64_t)1 << (8 * bytes - 1)) || value >= (int64_t)1 << (8 * bytes - 1)))
        bytes++;
    put_op(w, LONG1);
    put_bytes(w, (uint64_t)bytes, 1);
    put_bytes(w, (uint64_t)value, bytes);
}

void pickle_int(struct pickle_writer *w, const char *key, int64_t value)
{
    entry(w, key);
    put_int(w, value);
}

void pickle_pair(struct pickle_writer *w, const char *key, int64_t a, int64_t b)
{
    entry(w, key);
    put_int(w, a);
    put_int(w, b);
    put_op(w, TUPLE2);
}

/* Most significant byte first, other than everything else here. */
void pickle_double(struct pickle_writer *w, const char *key, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    entry(w, key);
    put_op(w, BINFLOAT);
    for (int i = 7; i >= 0; i--) put_bytes(w, bits >> (8 * i), 1);
}

void pickle_str(struct pickle_writer *w, const char *key, const char *value)
{
    entry(w, key);
    put_text(w, value);
}

void pickle_bool(struct pickle_writer *w, const char *key, bool value)
{
    entry(w, key);
    put_op(w, value ? NEWTRUE : NEWFALSE);
}

void pickle_remember(struct pickle_writer *w, uint32_t number)
{
    put_op(w, LONG_BINPUT);
    put_bytes(w, number, 4);
}

void pickle_recall(struct pickle_writer *w, const char *key, uint32_t number)
{
    entry(w, key);
    put_op(w, LONG_BINGET);
    put_bytes(w, number, 4);
}
