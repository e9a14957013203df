/* schema.h - configuration keys as a table.
 *
 * One row per key gives reading from YAML/JSON, `--set key=value`, defaults, checking and documentation.
 *
 *     struct job { int batch; bool batch_given; int optimizer; };
 *     static const char *const optimizers[] = {"adamw", "sgd", NULL};
 *     static const struct schema_row rows[] = {
 *         {"training.batch_size", SCHEMA_INT, offsetof(struct job, batch),
 *          .flag = SCHEMA_FLAG(struct job, batch_given), .min = 1, .max = 65536, .fallback = "8",
 *          .help = "samples per step"},
 *         {"training.optimizer", SCHEMA_ENUM, offsetof(struct job, optimizer), .names = optimizers,
 *          .fallback = "adamw", .help = "the rule that updates weights"},
 *         {"batch", .alias = "training.batch_size"},
 *         {"trainer.pin_memory", SCHEMA_NOTHING, .note = "needless: transfers are always pinned"},
 *     };
 *     static const struct schema schema = SCHEMA(rows);
 *
 *     schema_defaults(&schema, &job, &store, &err);
 *     schema_read(&schema, &doc->root, doc->name, &job, &store, &listener, &err);
 *     schema_set(&schema, "training.batch_size", "16", &job, &store, &listener, &err);
 *
 * A path may be a row and a section at once: a map is then read as the section, anything else as the row's value.
 *
 * Texts and lists that land in the target live in `store` (a bump the caller frees after the target's last
 * use); SCHEMA_NODE pointers live in the document. null means "not given". Errors are PLIM_BAD_INPUT and one
 * line, for example
 *     job.yaml:7: key 'training.batch_size': expected a whole number, found 'eight'; write e.g. 8
 *     job.yaml:3: unknown key 'trainig.batch_size'; did you mean 'training.batch_size'?
 */
#pragma once

#include "base/bump.h"
#include "base/node.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum schema_kind {
    SCHEMA_NOTHING = 0, /* any value is accepted and ignored; the note says why */
    SCHEMA_BOOL,        /* bool                                                          */
    SCHEMA_INT,         /* int                                                           */
    SCHEMA_INT64,       /* int64_t                                                       */
    SCHEMA_FLOAT,       /* double                                                        */
    SCHEMA_STRING,      /* const char *                                                  */
    SCHEMA_ENUM,        /* int (or an enum): index into names                            */
    SCHEMA_BYTES,       /* uint64_t, written 64MiB                                       */
    SCHEMA_STRING_LIST, /* struct string_list; a single text is a list of one */
    SCHEMA_INT_LIST,    /* struct schema_ints                                            */
    SCHEMA_FLOAT_LIST,  /* struct schema_floats                                          */
    SCHEMA_NODE,        /* const struct node *: a list or map that other code reads */
    SCHEMA_KINDS
};

struct schema_ints {
    int64_t *items;
    size_t count;
};

struct schema_floats {
    double *items;
    size_t count;
};

/* Another word for one of an enum's names. */
struct schema_synonym {
    const char *word, *name;
};

struct schema_row {
    const char *path; /* dotted, e.g. "training.batch_size"                                */
    enum schema_kind kind;
    size_t offset;            /* of the field in the target                                        */
    size_t flag;              /* SCHEMA_FLAG(struct, bool field) set true when given; 0: none      */
    double min, max;          /* numbers, bytes and list items; both 0: no limit                   */
    const char *const *names; /* SCHEMA_ENUM: NULL-terminated; SCHEMA_BYTES: words meaning 0 */
    const struct schema_synonym *synonyms; /* SCHEMA_ENUM: ends with a NULL word; NULL: none        */
    const char *fallback;                  /* default, as a user would write it; NULL: 0, false, none */
    const char *help;
    const char *note;  /* passed to the listener when the key is given */
    const char *alias; /* this key is another name for the row with that path               */
};

#define SCHEMA_FLAG(type, field) (offsetof(type, field) + 1)

struct schema {
    const struct schema_row *rows;
    size_t count;
    /* Synonyms of keys or of their last parts: {"lr", "training.learning_rate"}. Ends with a NULL word; may
     * be NULL. */
    const struct schema_synonym *words;
};

#define SCHEMA(table)                                                                                        \
    {                                                                                                        \
        .rows = (table), .count = sizeof(table) / sizeof((table)[0])                                         \
    }

/* Callbacks while keys are read; each may be NULL. */
struct schema_listener {
    /* A given key has a note. `where` is "job.yaml:7" or "--set". */
    void (*say)(void *arg, const char *where, const char *path, const char *note);
    void *arg;
    /* A key was given: its row, and the path used. `where` NULL: the row was reset to its default. */
    void (*given)(void *arg, const char *where, const struct schema_row *row, const char *path);
    /* Returns true if other code reads this key of a file; it is then skipped, whatever its value. */
    bool (*foreign)(const char *path, const struct node *node);
    /* Called for each wrong key except the last, which becomes the error. */
    void (*wrong)(void *arg, const char *text);
};

/* Writes every row's default into the target. An unreadable default is PLIM_BUG. */
enum plim_status schema_defaults(const struct schema *schema, void *target, struct bump *store,
                                 struct plim_error *err);

/* Reads all keys below `root` (a map, or null: nothing). A key and its aliases may all be given if their
 * values agree; otherwise the error names both. Reading continues after a wrong key: the last wrong key is
 * the error, and the listener hears of the others. The target then holds some new values and must not be
 * used. listener may be NULL. */
enum plim_status schema_read(const struct schema *schema, const struct node *root, const char *name,
                             void *target, struct bump *store, const struct schema_listener *listener,
                             struct plim_error *err);

/* Sets one key from a command line. Lists are written a,b,c. An empty value means text "", an empty list, or,
 * for other kinds, the default. */
enum plim_status schema_set(const struct schema *schema, const char *path, const char *value, void *target,
                            struct bump *store, const struct schema_listener *listener,
                            struct plim_error *err);

/* schema_set for a value from another source than --set; errors and the listener name `where`. */
enum plim_status schema_set_from(const struct schema *schema, const char *where, const char *path,
                                 const char *value, void *target, struct bump *store,
                                 const struct schema_listener *listener, struct plim_error *err);

/* schema_set_from with a single argument "key=value". */
enum plim_status schema_assign(const struct schema *schema, const char *assignment, void *target,
                               struct bump *store, const struct schema_listener *listener,
                               struct plim_error *err);

/* The row with that path, after following aliases; NULL: none. */
const struct schema_row *schema_find(const struct schema *schema, const char *path);

/* The key that an unknown path most likely means; NULL: no key is similar. */
const char *schema_guess(const struct schema *schema, const char *path);
/* The key that a word certainly means: itself, a synonym or an abbreviation; NULL: none. */
const char *schema_known_word(const struct schema *schema, const char *word);

/* PLIM_BAD_INPUT: no row has that path; names the nearest, if one is near. */
enum plim_status schema_unknown(const struct schema *schema, const char *where, const char *path,
                                struct plim_error *err);

/* The table as Markdown: a section per first path component, a line per key; aliases and ignored keys
 * last. */
void schema_markdown(const struct schema *schema, struct strbuf *out);

/* The value as a user would write it ("8", "adamw", "64 MiB", "a,b"), for reports. */
void schema_value(const struct schema_row *row, const void *target, struct strbuf *out);
