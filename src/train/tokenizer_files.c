/* tokenizer_files.c - see tokenizer_files.h. Through a small buffer: nothing here may add to what the plan counts. */
#include "train/tokenizer_files.h"
#include "base/file.h"
#include "text/gguf_tokenizer.h"
#include "text/sentencepiece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum plim_status copy_file(const char *from, const char *to, struct plim_error *err)
{
    char piece[16384];
    struct file_atomic f;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot read: %s", from, strerror(errno));
    enum plim_status status = file_atomic_begin(&f, to, err);
    ssize_t n = 0;
    for (uint64_t at = 0; status == PLIM_OK && (n = pread(fd, piece, sizeof piece, (off_t)at)) > 0;
         at += (uint64_t)n)
        status = file_pwrite_full(f.fd, piece, (size_t)n, at, f.temp, err);
    if (status == PLIM_OK && n < 0)
        status = plim_fail(err, PLIM_IO, "%s: cannot read: %s", from, strerror(errno));
    if (status == PLIM_OK)
        status = file_atomic_commit(&f, err);
    else
        file_atomic_abandon(&f);
    close(fd);
    return status;
}

/* The first three are a tokenizer themselves; the last belongs to the model. */
static const char *const names[] = {"tokenizer.json",        "tokenizer.model",         "spiece.model",
                                    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                    "chat_template.jinja",   "generation_config.json",  NULL};
enum { OF_MODEL = sizeof names / sizeof *names - 2 };

const char *tokenizer_file_name(int i) { return names[i]; }

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* tokenizer.json and tokenizer_config.json of a GGUF file; nothing where it holds no tokenizer. */
static enum plim_status copy_from_gguf(const char *path, const char *dir, struct plim_error *err)
{
    static const char *const made[] = {"tokenizer.json", "tokenizer_config.json"};
    STRBUF_AUTO text = STRBUF_INIT, name = STRBUF_INIT;
    struct gguf *file = NULL;
    enum plim_status status = gguf_open(path, &file, err);
    for (int i = 0; i < 2 && status == PLIM_OK && gguf_has_tokenizer(file); i++) {
        strbuf_clear(&text);
        strbuf_clear(&name);
        strbuf_addf(&name, "%s/%s", dir, made[i]);
        status = i ? gguf_tokenizer_config_write(file, &text, err) : gguf_tokenizer_write(file, &text, err);
        if (status == PLIM_OK) status = strbuf_status(&name, err);
        if (status == PLIM_OK) status = file_write_atomic(name.data, text.data, text.len, err);
    }
    gguf_close(file);
    return status;
}

/* The name under which a tokenizer is found again: its own, or that of its kind. */
static const char *usual_name(const char *path)
{
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(base_name(path), names[i])) return names[i];
    return sentencepiece_is(path) ? "tokenizer.model" : "tokenizer.json";
}

enum plim_status tokenizer_files_copy(const char *path, const char *dir, struct plim_error *err)
{
    if (!path) return PLIM_OK;
    if (gguf_is(path)) return copy_from_gguf(path, dir, err);
    const char *own = usual_name(path);
    char from[4200], to[4200];
    snprintf(to, sizeof to, "%s/%s", dir, own);
    enum plim_status status = copy_file(path, to, err);
    for (size_t i = 0; i < OF_MODEL && status == PLIM_OK; i++) {
        snprintf(from, sizeof from, "%.*s%s", (int)(base_name(path) - path), path, names[i]);
        snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        bool tokenizer = i < 3; /* beside a file of another name there may be another tokenizer */
        if (tokenizer && (strcmp(base_name(path), own) || !strcmp(own, names[i]))) continue;
        if (file_exists(from)) status = copy_file(from, to, err);
    }
    return status;
}

enum plim_status model_files_copy(const char *model, const char *dir, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (size_t i = OF_MODEL; model && names[i] && status == PLIM_OK; i++) {
        char from[4200], to[4200];
        snprintf(from, sizeof from, "%s/%s", model, names[i]);
        snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        if (file_exists(from)) status = copy_file(from, to, err);
    }
    return status;
}
