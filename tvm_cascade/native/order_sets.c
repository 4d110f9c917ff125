/* Dynamic programming over sets of operators: `run_in_python` of tvm_cascade/ordering/dp.py, state by state.
 *
 * What it does is told there; names are the same. Plain C11 without Python, called through ctypes.
 */
#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "order_tables.h"

enum { FOUND = 1, NONE = 0, STOPPED = -1, NO_MEMORY = -2 };

typedef struct {
    int64_t peak, live; /* bytes */
    int64_t parent;     /* number in the history of the set without `op` */
    int64_t op;         /* the last operator, -1 at the start */
    uint64_t hash;
    uint64_t sets[];    /* the operators done, then those that may run next */
} Entry;

typedef struct {
    char *entries;
    int64_t count, room; /* states, and how many have room */
} Layer;

typedef struct {
    int64_t parent, op;
} Past;

typedef struct {
    const Tables *t;
    int64_t words, budget;
    int dominance;
    size_t bytes; /* of an entry */
    Layer now, following;
    int64_t *slots, slot_count; /* hash table of the following layer: a state's number plus one, or 0 */
    Past *history;
    int64_t past, past_room;
    int64_t *moves; /* triples (operator, bytes while it runs, change) */
    Entry *next;    /* scratch */
    int64_t exceeded, states, steps;
} Search;

static int is_done(const void *done, int64_t op) { return (int)(((const uint64_t *)done)[op >> 6] >> (op & 63) & 1); }

static void put(uint64_t *set, int64_t op) { set[op >> 6] |= (uint64_t)1 << (op & 63); }

static void take(uint64_t *set, int64_t op) { set[op >> 6] &= ~((uint64_t)1 << (op & 63)); }

static int64_t lowest(uint64_t word) {
    int64_t k = 0;
    for (int64_t half = 32; half; half /= 2)
        if (!(word & (((uint64_t)1 << half) - 1))) {
            k += half;
            word >>= half;
        }
    return k;
}

static uint64_t mixed(int64_t op) { /* splitmix64 */
    uint64_t x = ((uint64_t)op + 1) * 0x9E3779B97F4A7C15ULL;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}

static Entry *entry(const Search *s, const Layer *layer, int64_t k) { return (Entry *)(layer->entries + (size_t)k * s->bytes); }

static void insert_slot(Search *s, uint64_t hash, int64_t number) {
    int64_t k = (int64_t)(hash & (uint64_t)(s->slot_count - 1));
    while (s->slots[k]) k = (k + 1) & (s->slot_count - 1);
    s->slots[k] = number + 1;
}

/* Room for one more state in the following layer; 0 where there is no memory. */
static int grow(Search *s) {
    Layer *f = &s->following;
    if (f->count < f->room) return 1;
    char *more = realloc(f->entries, (size_t)(2 * f->room) * s->bytes);
    if (!more) return 0;
    f->entries = more;
    f->room *= 2;
    if (s->slot_count < 2 * f->room) {
        int64_t *slots = calloc((size_t)(2 * f->room), sizeof(int64_t));
        if (!slots) return 0;
        free(s->slots);
        s->slots = slots;
        s->slot_count = 2 * f->room;
        for (int64_t k = 0; k < f->count; k++) insert_slot(s, entry(s, f, k)->hash, k);
    }
    return 1;
}

/* Put the state `next` into the following layer, or lower the peak of the same set there. */
static int reach(Search *s, const Entry *next) {
    Layer *f = &s->following;
    for (int64_t k = (int64_t)(next->hash & (uint64_t)(s->slot_count - 1)); s->slots[k]; k = (k + 1) & (s->slot_count - 1)) {
        Entry *known = entry(s, f, s->slots[k] - 1);
        if (known->hash != next->hash || memcmp(known->sets, next->sets, (size_t)s->words * 8)) continue;
        if (next->peak < known->peak) {
            known->peak = next->peak;
            known->parent = next->parent;
            known->op = next->op;
        }
        return 1;
    }
    if (!grow(s)) return 0;
    memcpy(entry(s, f, f->count), next, s->bytes);
    insert_slot(s, next->hash, f->count);
    f->count++;
    return 1;
}

/* Into `moves` the operators that may run after a state; returns how many. */
static int64_t options(Search *s, const Entry *state) {
    const uint64_t *done = state->sets, *ready = done + s->words;
    int64_t count = 0;
    for (int64_t w = 0; w < s->words; w++)
        for (uint64_t left = ready[w]; left; left &= left - 1) {
            int64_t op = 64 * w + lowest(left), need, change;
            s->steps++;
            step(s->t, is_done, done, op, &need, &change);
            int64_t top = state->live + need, *move = s->moves + 3 * count;
            if (s->dominance && change <= 0 && top <= state->peak) {
                move = s->moves;
                move[0] = op, move[1] = top, move[2] = change;
                return 1;
            }
            if (top > s->budget) {
                if (top < s->exceeded) s->exceeded = top;
                continue;
            }
            move[0] = op, move[1] = top, move[2] = change;
            count++;
        }
    return count;
}

static int expand(Search *s, const Entry *state, int64_t number) {
    const Tables *t = s->t;
    int64_t count = options(s, state);
    for (int64_t k = 0; k < count; k++) {
        int64_t op = s->moves[3 * k], top = s->moves[3 * k + 1];
        Entry *next = s->next;
        memcpy(next, state, s->bytes);
        next->peak = top > state->peak ? top : state->peak;
        next->live = state->live + s->moves[3 * k + 2];
        next->parent = number;
        next->op = op;
        next->hash = state->hash ^ mixed(op);
        put(next->sets, op);
        take(next->sets + s->words, op);
        for (int64_t j = t->after_start[op]; j < t->after_start[op + 1]; j++) {
            int64_t follower = t->after[j], waits = 0;
            for (int64_t i = t->before_start[follower]; i < t->before_start[follower + 1] && !waits; i++)
                waits = !is_done(next->sets, t->before[i]);
            if (!waits) put(next->sets + s->words, follower);
        }
        if (!reach(s, next)) return 0;
    }
    return 1;
}

/* Whether `a` is better than `b`: by peak, by live bytes, by the set as a number. */
static int better(const Search *s, const Entry *a, const Entry *b) {
    if (a->peak != b->peak) return a->peak < b->peak;
    if (a->live != b->live) return a->live < b->live;
    for (int64_t w = s->words - 1; w >= 0; w--)
        if (a->sets[w] != b->sets[w]) return a->sets[w] < b->sets[w];
    return 0;
}

/* Keep the `width` best states of the following layer, in the order in which they stand. */
static int narrow(Search *s, int64_t width) {
    Layer *f = &s->following;
    Entry **all = malloc((size_t)f->count * sizeof(Entry *));
    if (!all) return 0;
    for (int64_t k = 0; k < f->count; k++) all[k] = entry(s, f, k);
    int64_t low = 0, high = f->count - 1;
    while (low < high) { /* Hoare's selection of the best `width` */
        const Entry *pivot = all[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (better(s, all[i], pivot)) i++;
            while (better(s, pivot, all[j])) j--;
            if (i <= j) {
                Entry *other = all[i];
                all[i++] = all[j];
                all[j--] = other;
            }
        }
        if (width - 1 <= j) high = j;
        else if (width - 1 >= i) low = i;
        else break;
    }
    memcpy(s->next, all[width - 1], s->bytes); /* the last that stays */
    int64_t kept = 0;
    for (int64_t k = 0; k < f->count; k++)
        if (!better(s, s->next, entry(s, f, k))) memmove(entry(s, f, kept++), entry(s, f, k), s->bytes);
    f->count = kept;
    free(all);
    return 1;
}

/* Number the states of the following layer in the history, and make it the present one. */
static int advance(Search *s) {
    Layer *f = &s->following;
    while (s->past + f->count > s->past_room) {
        Past *more = realloc(s->history, (size_t)(2 * s->past_room) * sizeof(Past));
        if (!more) return 0;
        s->history = more;
        s->past_room *= 2;
    }
    for (int64_t k = 0; k < f->count; k++) s->history[s->past + k] = (Past){entry(s, f, k)->parent, entry(s, f, k)->op};
    s->past += f->count;
    s->states += f->count;
    Layer old = s->now;
    s->now = *f;
    s->following = old;
    s->following.count = 0;
    memset(s->slots, 0, (size_t)s->slot_count * sizeof(int64_t));
    if (s->slot_count < 2 * s->following.room) {
        int64_t *slots = calloc((size_t)(2 * s->following.room), sizeof(int64_t));
        if (!slots) return 0;
        free(s->slots);
        s->slots = slots;
        s->slot_count = 2 * s->following.room;
    }
    return 1;
}

static int begin(Search *s, int64_t floor) {
    const Tables *t = s->t;
    s->words = t->n / 64 + 1;
    s->bytes = sizeof(Entry) + (size_t)(2 * s->words) * 8;
    s->now.room = s->following.room = 256;
    s->now.entries = malloc(256 * s->bytes);
    s->following.entries = malloc(256 * s->bytes);
    s->slot_count = 512;
    s->slots = calloc(512, sizeof(int64_t));
    s->past_room = 1024;
    s->history = malloc(1024 * sizeof(Past));
    s->moves = malloc((size_t)(3 * t->n + 3) * sizeof(int64_t));
    s->next = malloc(s->bytes);
    if (!s->now.entries || !s->following.entries || !s->slots || !s->history || !s->moves || !s->next) return 0;
    Entry *first = entry(s, &s->now, 0);
    memset(first, 0, s->bytes);
    first->peak = floor > t->live ? floor : t->live;
    first->live = t->live;
    first->parent = first->op = -1;
    for (int64_t op = 0; op < t->n; op++)
        if (t->before_start[op] == t->before_start[op + 1]) put(first->sets + s->words, op);
    s->history[0] = (Past){-1, -1};
    s->past = s->now.count = s->states = 1;
    s->exceeded = (int64_t)1 << 62;
    return 1;
}

/* The layers; `limits` are the work, the least and the most states of a layer, and the states between looks at the time. */
static int layers(Search *s, const int64_t *limits, int (*stop)(void), int64_t *complete) {
    for (int64_t depth = 0; depth < s->t->n; depth++) {
        int64_t first = s->past - s->now.count;
        for (int64_t k = 0; k < s->now.count; k++) {
            if (k % limits[3] == 0 && stop()) return STOPPED;
            if (!expand(s, entry(s, &s->now, k), first + k)) return NO_MEMORY;
        }
        if (!s->following.count) return NONE;
        int64_t left = limits[0] > s->steps ? limits[0] - s->steps : 0, share = s->steps * (s->t->n - depth);
        int64_t width = 4 * left * s->states / (share > 1 ? share : 1);
        if (width > limits[2]) width = limits[2];
        if (width < limits[1]) width = limits[1];
        if (s->following.count > width) {
            *complete = 0;
            if (!narrow(s, width)) return NO_MEMORY;
        }
        if (!advance(s)) return NO_MEMORY;
    }
    return FOUND;
}

/* `order` is the result where the answer is FOUND; `told` is whether the run was complete, the least demand refused, states
 * and steps. */
EXPORTED int tvm_cascade_order_sets(const Tables *t, int64_t budget, int64_t floor, int dominance, const int64_t *limits,
                                    int (*stop)(void), int64_t *order, int64_t *told) {
    Search s = {.t = t, .budget = budget, .dominance = dominance};
    int64_t complete = 1;
    int answer = begin(&s, floor) ? layers(&s, limits, stop, &complete) : NO_MEMORY;
    if (answer == FOUND) {
        int64_t at = s.past - 1;
        for (int64_t k = t->n - 1; k >= 0; k--, at = s.history[at].parent) order[k] = s.history[at].op;
    }
    told[0] = answer == STOPPED ? 0 : complete;
    told[1] = s.exceeded;
    told[2] = s.states;
    told[3] = s.steps;
    free(s.now.entries);
    free(s.following.entries);
    free(s.slots);
    free(s.history);
    free(s.moves);
    free(s.next);
    return answer;
}
