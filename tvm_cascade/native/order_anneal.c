/* Annealing of operator orders: `anneal_in_python` of tvm_cascade/ordering/anneal.py, with the same answers.
 *
 * What it does is told there; names are the same. Plain C11 without Python, called through ctypes.
 */
#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "order_tables.h"
#include "random.h"

enum { DONE = 1, NO_MEMORY = -2 };

typedef struct {
    int64_t lowest; /* bytes: the search ends at an order of that peak */
    int64_t margin; /* bytes by which it aims below the best peak */
    int64_t moves, reach, heat, draws, scale, polled;
    uint64_t seed;
} Settings;

typedef struct {
    const Tables *t;
    int64_t *order, *place;         /* operator of each step, step of each operator */
    int64_t *live, *used;           /* bytes live before each step, and in use while it runs */
    int64_t *moved_live, *moved_used; /* the same after a move */
    int64_t *best;
    int64_t goal, peak;
    uint64_t random;
} State;

typedef struct {
    const int64_t *place;
    int64_t now;
} Moment;

static inline int is_done(const void *done, int64_t op) {
    const Moment *moment = done;
    return moment->place[op] < moment->now;
}

static void shift(State *s, int64_t from, int64_t to) {
    int64_t op = s->order[from];
    for (int64_t k = from; k < to; k++) s->place[s->order[k] = s->order[k + 1]] = k;
    for (int64_t k = from; k > to; k--) s->place[s->order[k] = s->order[k - 1]] = k;
    s->place[s->order[to] = op] = to;
}

/* Count the steps from `low` to `high` anew, into `moved_live` and `moved_used`. */
static void count(State *s, int64_t low, int64_t high) {
    int64_t live = s->live[low], need, change;
    for (int64_t k = low; k <= high; k++) {
        Moment moment = {s->place, k};
        step(s->t, is_done, &moment, s->order[k], &need, &change);
        s->moved_live[k] = live;
        s->moved_used[k] = live + need;
        live += change;
    }
}

static void keep(State *s, int64_t low, int64_t high) {
    memcpy(s->live + low, s->moved_live + low, (size_t)(high - low + 1) * sizeof(int64_t));
    memcpy(s->used + low, s->moved_used + low, (size_t)(high - low + 1) * sizeof(int64_t));
}

/* Take the present order as the best if it is, and aim lower. */
static void note(State *s, const Settings *c) {
    int64_t n = s->t->n, top = s->t->live;
    for (int64_t k = 0; k < n; k++)
        if (s->used[k] > top) top = s->used[k];
    if (top >= s->peak) return;
    s->peak = top;
    s->goal = top - c->margin < c->lowest ? c->lowest : top - c->margin;
    memcpy(s->best, s->order, (size_t)n * sizeof(int64_t));
}

/* The steps among which the operator of step `from` may move, at most `reach` away. */
static void range(const State *s, int64_t from, int64_t reach, int64_t *first, int64_t *last) {
    const Tables *t = s->t;
    int64_t op = s->order[from];
    *first = from > reach ? from - reach : 0;
    *last = from + reach < t->n ? from + reach : t->n - 1;
    for (int64_t k = t->before_start[op]; k < t->before_start[op + 1]; k++)
        if (s->place[t->before[k]] >= *first) *first = s->place[t->before[k]] + 1;
    for (int64_t k = t->after_start[op]; k < t->after_start[op + 1]; k++)
        if (s->place[t->after[k]] <= *last) *last = s->place[t->after[k]] - 1;
}

static inline int64_t excess(int64_t used, int64_t goal) { return used > goal ? used - goal : 0; }

static void move(State *s, const Settings *c, const int64_t *draws, int64_t heat) {
    int64_t from = (int64_t)draw(&s->random, (uint64_t)s->t->n), first, last;
    range(s, from, c->reach, &first, &last);
    if (first == last) return;
    int64_t to = first + (int64_t)draw(&s->random, (uint64_t)(last - first));
    if (to >= from) to++;
    int64_t low = from < to ? from : to, high = from < to ? to : from, change = 0;
    shift(s, from, to);
    count(s, low, high);
    for (int64_t k = low; k <= high; k++) change += excess(s->moved_used[k], s->goal) - excess(s->used[k], s->goal);
    if (change > 0 && change * c->scale > heat * draws[draw(&s->random, (uint64_t)c->draws)]) {
        shift(s, to, from);
        return;
    }
    keep(s, low, high);
    if (change < 0) note(s, c);
}

/* `order` holds an order, and then the best. `draws` are drawn from an exponential distribution, times `scale`. */
EXPORTED int tvm_cascade_anneal_order(const Tables *t, const Settings *c, const int64_t *draws, int64_t *order,
                                      int (*stop)(void)) {
    size_t n = (size_t)t->n;
    int64_t *memory = malloc(6 * n * sizeof(int64_t));
    if (!memory) return NO_MEMORY;
    State s = {.t = t, .order = memory, .place = memory + n, .live = memory + 2 * n, .used = memory + 3 * n,
               .moved_live = memory + 4 * n, .moved_used = memory + 5 * n, .best = order, .random = 2 * c->seed + 1};
    memcpy(s.order, order, n * sizeof(int64_t));
    for (int64_t k = 0; k < t->n; k++) s.place[s.order[k]] = k;
    s.live[0] = t->live;
    count(&s, 0, t->n - 1);
    keep(&s, 0, t->n - 1);
    s.peak = INT64_MAX;
    note(&s, c);
    for (int64_t m = 0; m < c->moves && s.peak > c->lowest; m++) {
        if (m % c->polled == 0 && stop()) break;
        move(&s, c, draws, c->heat * (c->moves - m) / c->moves);
    }
    free(memory);
    return DONE;
}
