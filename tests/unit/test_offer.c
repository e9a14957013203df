/* run-tests: not=tsan */
/* test_offer.c - offers shrink along the list in everything they promise, and a larger budget never gets a smaller one,
 * whatever an offer takes: with oracles that are smooth, jagged and random. */
#include "base/rng.h"
#include "plan/offer.h"
#include "tape/pass.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

/* Wish number n: some values are pinned, some capabilities missing. */
static struct offer_wish make_wish(uint64_t n)
{
    struct offer most = {.context = 1 << (4 + rng_below(1, n, 0, 14)),
                         .requests = 1 + (int64_t)rng_below(1, n, 1, 300),
                         .step = 32 + (int64_t)rng_below(1, n, 2, 4096)};
    struct offer_wish w = {.most = most,
                           .least = {.context = 256, .requests = 1, .step = 32},
                           .usual_context = 8192,
                           .modest = {.context = 4096, .requests = 8, .step = most.step / 4},
                           .request_positions = n % 3 ? 256 : 0,
                           .may_code = n & 1,
                           .may_stream = n & 2,
                           .stream_last = n & 32,
                           .window = n & 4 ? 32 : 0,
                           .window_last = n & 64};
    w.shortest_context = 16;
    if (n & 8) w.least.context = w.shortest_context = most.context;
    if (n & 16) w.least.requests = most.requests;
    if (w.least.context > most.context) w.least.context = most.context;
    if (w.shortest_context > w.least.context) w.shortest_context = w.least.context;
    return w;
}

static void offers_shrink(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3000; n++) {
        struct offer_wish w = make_wish(n);
        struct offer_list list;
        offer_list_make(&w, &list);
        assert_in_range(list.count, 1, OFFERS_MOST - 1);
        for (int i = 0; i < list.count; i++) {
            const struct offer *o = &list.offer[i], *before = i ? o - 1 : o;
            assert_true(o->context <= before->context && o->requests <= before->requests);
            bool windows = o->window || before->window;
            assert_true(o->step <= before->step && (windows || o->positions <= before->positions));
            assert_true(o->share >= before->share && o->coded >= before->coded);
            assert_true(o->rung >= before->rung || (before->rung == OFFER_MINIMAL && !w.window_last));
            assert_true(o->context >= w.shortest_context && (w.window || o->requests >= w.least.requests));
            assert_true(o->step >= o->requests && o->positions >= (o->window ? 1 : o->context));
            assert_true(w.may_stream || !o->share);
            bool smallest = o->requests <= w.least.requests && o->context <= w.least.context;
            assert_true(!w.stream_last || !o->share || smallest);
            assert_true(w.may_code || !o->coded);
        }
        const struct offer *last = &list.offer[list.count - 1];
        assert_int_equal(last->share, w.may_stream ? OFFLOAD_SHARES : 0);
        bool windows = w.window && w.window_last;
        assert_int_equal(last->context, windows ? w.least.context : w.shortest_context);
        assert_true(windows ? last->window : last->step == last->requests);
    }
}

/* --- any oracle --------------------------------------------------------------------------------------------- */

struct bytes {
    uint64_t seed;
    int kind, asked;
};

static enum plim_status need(void *arg, const struct offer *o, const struct offer_bytes *line,
                             struct offer_bytes *out, struct plim_error *err)
{
    struct bytes *b = arg;
    (void)line, (void)err;
    b->asked++;
    int64_t smooth = o->positions * 100 + o->requests * 5000 + o->step * 700 + (16 - o->share) * 1000000;
    uint64_t at = (uint64_t)(o->context * 31 + o->requests * 7 + o->step * 3 + o->share);
    out->device = b->kind == 0   ? smooth
                  : b->kind == 1 ? smooth + (o->requests == 8 ? 9000000 : 0) /* split attention of few rows */
                                 : (int64_t)rng_below(b->seed, at, 9, 30000000);
    out->host = o->share * 1000;
    return PLIM_OK;
}

static void more_budget_is_never_less(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 600; n++) {
        struct offer_wish w = make_wish(n);
        struct offer_list list;
        struct bytes b = {.seed = n, .kind = (int)(n % 3)};
        struct offer_oracle oracle = {need, &b};
        struct offer_line line = {.bytes = {0, n % 5 ? 0 : 8000}, .reserve = n % 2 ? 1000 : 0};
        int best = OFFERS_MOST;
        offer_list_make(&w, &list);
        for (line.bytes.device = 50000; line.bytes.device < 60000000; line.bytes.device += 377777) {
            struct offer_choice c;
            enum plim_status status = offer_choose(&list, &oracle, &line, &c, NULL);
            if (status != PLIM_OK) {
                assert_int_equal(best, OFFERS_MOST);   /* nothing smaller was accepted */
                for (int i = 0; i < list.count; i++) { /* and no offer is smaller */
                    struct offer_bytes other;
                    need(&b, &list.offer[i], NULL, &other, NULL);
                    assert_true(c.need.device <= other.device);
                }
                continue;
            }
            assert_true(c.need.device <= line.bytes.device);
            assert_true(!line.bytes.host || c.need.host <= line.bytes.host);
            assert_true(c.at <= best);
            for (int r = 0; r < (int)list.offer[c.at].rung; r++)
                assert_true(!c.missed[r] || c.missed[r] > line.bytes.device || line.bytes.host);
            best = c.at;
        }
    }
}

/* An offer that a device refused is not tried again, nor one above its rung. */
static void rungs_above_are_left_out(void **state)
{
    (void)state;
    struct offer_wish w = make_wish(7);
    struct offer_list list;
    struct bytes b = {.kind = 0};
    struct offer_oracle oracle = {need, &b};
    offer_list_make(&w, &list);
    for (int r = OFFER_FULL; r < OFFER_RUNGS; r++) {
        struct offer_line line = {.first = (enum offer_rung)r};
        struct offer_choice c;
        assert_int_equal(offer_choose(&list, &oracle, &line, &c, NULL), PLIM_OK);
        assert_true(list.offer[c.at].rung >= (enum offer_rung)r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offers_shrink),
        cmocka_unit_test(more_budget_is_never_less),
        cmocka_unit_test(rungs_above_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
