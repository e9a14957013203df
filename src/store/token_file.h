/* token_file.h - pre-tokenised data on disk: tokens, where samples begin, which tokens are targets, checksums.
 *
 *     struct token_file *f;
 *     token_file_open("corpus.tok", &f, &err);                 // checks header and checksum table
 *     token_file_sample(f, 7, &first, &count, &err);
 *     token_file_read(f, first, count, tokens, &err);          // TOKEN_QUIET marks those that are no targets
 *     token_file_close(f);
 *
 * The layout is in docs/data.md. The file is mapped; a chunk of 1 MiB is checked against its sum when it is first
 * touched, and damage is PLIM_BAD_INPUT with its position. Mapped pages are given back as reading goes on: at most
 * TOKEN_FILE_RESIDENT bytes stay resident. One thread at a time.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A token that the loss leaves out has this bit set; token_id takes it off. */
#define TOKEN_QUIET INT32_MIN
static inline int32_t token_id(int32_t token) { return token & INT32_MAX; }
static inline bool token_is_target(int32_t token) { return token >= 0; }

#define TOKEN_FILE_MAGIC    "PLIMTOK\n"
#define TOKEN_FILE_VERSION  1u
#define TOKEN_FILE_HEADER   256u
#define TOKEN_FILE_CHUNK    ((uint64_t)1 << 20)
#define TOKEN_FILE_RESIDENT ((size_t)4 << 20)

enum token_file_flag {
    TOKEN_FILE_MASK = 1, /* a bit per token: is it a target */
    TOKEN_FILE_LINES = 2 /* samples are records of their own (lines); else documents of running text */
};

/* As it lies in the file, little-endian. */
struct token_file_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t width; /* bytes of a token: 2 or 4 */
    uint32_t flags;
    uint64_t vocab_size, tokens, samples;
    uint64_t longest;     /* tokens of the longest sample */
    uint64_t fingerprint; /* of the tokenizer; 0: bytes */
    int64_t eos;          /* -1: none */
    uint64_t mask_at;     /* file offsets; tokens begin after the header; 0: no mask */
    uint64_t index_at;    /* samples + 1 numbers of 64 bits: where each begins, counted in tokens */
    uint64_t sums_at;     /* one 64-bit checksum per chunk of [header_bytes, sums_at) */
    uint64_t sums_hash;   /* of that table */
    uint64_t file_bytes;
    uint64_t reserved[17];
    uint64_t header_hash; /* of everything before it */
};

struct token_file;

enum plim_status token_file_open(const char *path, struct token_file **out, struct plim_error *err);
void token_file_close(struct token_file *f);
const struct token_file_header *token_file_header(const struct token_file *f);

/* Tokens [first, first + count) of sample i. */
enum plim_status token_file_sample(struct token_file *f, uint64_t i, uint64_t *first, uint64_t *count,
                                   struct plim_error *err);
/* out [n]; PLIM_BAD_INPUT also for an id beyond the vocabulary. */
enum plim_status token_file_read(struct token_file *f, uint64_t first, size_t n, int32_t *out,
                                 struct plim_error *err);
/* How many of the tokens are targets, without reading them. */
enum plim_status token_file_targets(struct token_file *f, uint64_t first, size_t n, uint64_t *out,
                                    struct plim_error *err);
/* These tokens will be read soon. */
void token_file_hint(const struct token_file *f, uint64_t first, uint64_t n);
/* Check every chunk. */
enum plim_status token_file_verify(struct token_file *f, struct plim_error *err);

/* Give the mapped pages back now: somebody else's turn. */
void token_file_rest(struct token_file *f);

/* The most memory an open file of that size takes; while it is read its pages come on top: TOKEN_FILE_RESIDENT, what
 * checking a chunk adds, or all of a small file. */
size_t token_file_bytes_most(uint64_t file_bytes);
size_t token_file_working(uint64_t file_bytes);

/* Sum of a whole header but its last field. */
uint64_t token_file_header_hash(const struct token_file_header *h);
