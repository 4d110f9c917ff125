/* The arena search of tvm_cascade/memory/arena_search.py, step for step: same nodes in the same order, same answers.
 *
 * What the search does and why is told there; names are the same. Plain C11 without Python, called through ctypes:
 * one library serves every Python version.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "exported.h"

#define FAR INT64_C(0x4000000000000000)
enum { FOUND = 1, NONE = 0, LIMIT = -1, NO_MEMORY = -2 };

/* `Tables` of arena_search.py, by position of the n buffers; matrices row by row, ragged rows as starts and entries. */
typedef struct {
    int64_t n, free_count, slack;
    const int64_t *size, *alignment, *lower, *upper;
    const uint8_t *meets;    /* n x n */
    const int64_t *span_first, *span_last;
    const int64_t *twin;
    const int64_t *pinned_start, *pinned; /* pairs [low, high) */
    const int64_t *free;
    const int64_t *partner_start, *partners; /* triples (other, writes, distance) */
    const int64_t *stacked;
    const int64_t *lift; /* n x n, or NULL: the size of the other buffer */
} Tables;

/* -- memory that is given back from its end, as far as a mark ----------------------------------------------------- */

typedef struct Chunk {
    struct Chunk *before;
    size_t used, room;
    max_align_t bytes[];
} Chunk;

typedef struct {
    Chunk *chunk;
    size_t used;
} Mark;

typedef struct {
    Chunk *top;
    int failed;
} Stack;

static void *take(Stack *s, size_t bytes) {
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (!s->top || s->top->used + bytes > s->top->room) {
        size_t room = bytes > ((size_t)1 << 20) ? bytes : (size_t)1 << 20;
        Chunk *chunk = malloc(sizeof(Chunk) + room);
        if (!chunk) {
            s->failed = 1;
            return NULL;
        }
        chunk->before = s->top;
        chunk->used = 0;
        chunk->room = room;
        s->top = chunk;
    }
    void *at = (char *)s->top->bytes + s->top->used;
    s->top->used += bytes;
    return at;
}

static Mark mark_of(const Stack *s) { return (Mark){s->top, s->top ? s->top->used : 0}; }

static void give_back(Stack *s, Mark mark) {
    while (s->top != mark.chunk) {
        Chunk *before = s->top->before;
        free(s->top);
        s->top = before;
    }
    if (s->top) s->top->used = mark.used;
}

/* -- a set of byte strings, compared in full ---------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    size_t length;
    uint8_t *bytes;
} Key;

typedef struct {
    Key *slots;
    size_t room, count;
    Stack memory;
} Set;

static uint64_t hash_of(const uint8_t *bytes, size_t length) {
    uint64_t h = UINT64_C(0x9E3779B97F4A7C15) ^ length, word;
    for (; length >= 8; length -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
        h ^= h >> 32;
    }
    for (; length; length--, bytes++) h = (h ^ *bytes) * UINT64_C(0x100000001B3);
    return h ^ (h >> 29);
}

static Key *slot_of(const Set *set, const Key *key) {
    size_t i = key->hash & (set->room - 1);
    for (;; i = (i + 1) & (set->room - 1)) {
        Key *slot = &set->slots[i];
        if (!slot->bytes) return slot;
        if (slot->hash == key->hash && slot->length == key->length && !memcmp(slot->bytes, key->bytes, key->length))
            return slot;
    }
}

static int holds(const Set *set, const Key *key) { return set->room && slot_of(set, key)->bytes; }

static int add(Set *set, const Key *key) {
    if (set->count * 2 >= set->room) {
        Set grown = {calloc(set->room ? set->room * 2 : 1024, sizeof(Key)), set->room ? set->room * 2 : 1024,
                     set->count, set->memory};
        if (!grown.slots) return 0;
        for (size_t i = 0; i < set->room; i++)
            if (set->slots[i].bytes) *slot_of(&grown, &set->slots[i]) = set->slots[i];
        free(set->slots);
        *set = grown;
    }
    Key *slot = slot_of(set, key);
    if (slot->bytes) return 1;
    uint8_t *bytes = take(&set->memory, key->length);
    if (!bytes) return 0;
    memcpy(bytes, key->bytes, key->length);
    *slot = (Key){key->hash, key->length, bytes};
    set->count++;
    return 1;
}

/* -- the search --------------------------------------------------------------------------------------------------- */

typedef struct Part { /* unplaced buffers connected in time, and the decision that made them a part of their own */
    int64_t count;
    const int32_t *members; /* positions, by start of life */
    const int64_t *support; /* bytes, by position */
    const uint8_t *skipped; /* by position */
    int64_t parent;         /* depth of the frame, -1 for the root */
    const struct Part *rest;
} Part;

typedef struct {
    const Part *part;
    const int32_t *candidates; /* places in part->members */
    int64_t count, next;
    Key key;
    Mark mark; /* what lies above belongs to the frame's choice and goes with it */
} Frame;

typedef struct {
    const Tables *t;
    int64_t capacity;
    const int64_t *rank;
    int64_t nodes, exceeded;
    int64_t *offsets;
    Set failed;
    Stack memory;
    Frame *frames;
    int64_t depth_of_stack;
    /* scratch, n entries each */
    int64_t *low, *raised, *stack;
    int32_t *order, *spare, *near, *place_of;
    uint8_t *inside;
    int64_t *beside_start; /* for each buffer those that are live with it: n + 1 starts, and positions */
    int32_t *beside;
} Search;

static int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void clear_of_pinned(const Tables *t, int64_t i, int64_t *support) {
    for (int64_t k = t->pinned_start[i]; k < t->pinned_start[i + 1]; k++) {
        int64_t low = t->pinned[2 * k], high = t->pinned[2 * k + 1];
        if (support[i] < high && low < support[i] + t->size[i]) support[i] = up(high, t->alignment[i]);
    }
}

/* Raise the support of i out of the places that a placed reader or writer forbids. */
static void clear_of_partners(Search *s, int64_t i, int64_t *support) {
    const Tables *t = s->t;
    int64_t count = t->partner_start[i + 1] - t->partner_start[i], taken = 0;
    Mark mark = mark_of(&s->memory);
    int64_t(*spans)[2] = take(&s->memory, (size_t)count * sizeof *spans);
    if (!spans) return;
    for (int64_t k = t->partner_start[i]; k < t->partner_start[i + 1]; k++) {
        int64_t j = t->partners[3 * k], writes = t->partners[3 * k + 1], distance = t->partners[3 * k + 2];
        if (s->inside[j] || !t->meets[i * t->n + j]) continue;
        int64_t at = s->offsets[j], low = at - t->size[i] + 1, high = at + t->size[j];
        if (writes)
            low = larger(low, at - distance + 1);
        else
            high = smaller(high, at + distance);
        int64_t place = taken++;
        for (; place && (spans[place - 1][0] > low || (spans[place - 1][0] == low && spans[place - 1][1] > high)); place--)
            memcpy(spans[place], spans[place - 1], sizeof *spans);
        spans[place][0] = low;
        spans[place][1] = high;
    }
    for (int64_t k = 0; k < taken; k++)
        if (spans[k][0] <= support[i] && support[i] < spans[k][1]) support[i] = up(spans[k][1], t->alignment[i]);
    if (taken) clear_of_pinned(t, i, support);
    give_back(&s->memory, mark);
}

/* Split members (by start of life) where no life crosses; the pieces stand in front of rest. */
static const Part *parts(Search *s, const int32_t *members, int64_t count, const int64_t *support,
                         const uint8_t *skipped, int64_t parent, const Part *rest) {
    const Tables *t = s->t;
    int64_t end = count, latest = -FAR, pieces = 0;
    int32_t *starts = s->spare;
    for (int64_t k = 0; k < count; k++) {
        if (t->lower[members[k]] >= latest) starts[pieces++] = (int32_t)k;
        latest = larger(latest, t->upper[members[k]]);
    }
    while (pieces) { /* from the last piece to the first */
        int64_t start = starts[--pieces];
        Part *part = take(&s->memory, sizeof *part);
        if (!part) return NULL;
        *part = (Part){end - start, members + start, support, skipped, parent, rest};
        rest = part;
        end = start;
    }
    return rest;
}

/* The lowest places that the part's members can rest at, into s->low; 0 where one rests on nothing. */
static int low_of(Search *s, const Part *part) {
    const Tables *t = s->t;
    int64_t m = part->count, n = t->n, any = 0;
    for (int64_t k = 0; k < m; k++) {
        s->low[k] = part->support[part->members[k]];
        s->place_of[part->members[k]] = (int32_t)k;
        any |= part->skipped[part->members[k]];
    }
    if (!any) return 1;
    for (int round = 0; round < 2; round++) {
        int changed = 0;
        for (int64_t k = 0; k < m; k++) {
            int64_t i = part->members[k];
            s->raised[k] = s->low[k];
            if (!part->skipped[i]) continue;
            int64_t least = FAR;
            int met = 0;
            for (int64_t l = s->beside_start[i]; l < s->beside_start[i + 1]; l++) {
                int64_t j = s->beside[l], at = s->place_of[j];
                if (at >= m || part->members[at] != j) continue; /* not in this part */
                met = 1;
                least = smaller(least, s->low[at] + (t->lift ? t->lift[i * n + j] : t->size[j]));
            }
            if (!met) return 0;
            s->raised[k] = larger(s->low[k], least);
            changed |= s->raised[k] != s->low[k];
        }
        if (!changed) break;
        int64_t *swap = s->low;
        s->low = s->raised;
        s->raised = swap;
    }
    return 1;
}

/* Stable order of the part's members by s->low, into s->order. */
static void sort_by_low(Search *s, int64_t m) {
    int32_t *from = s->order, *to = s->spare;
    for (int64_t k = 0; k < m; k++) from[k] = (int32_t)k;
    for (int64_t width = 1; width < m; width *= 2) {
        for (int64_t start = 0; start < m; start += 2 * width) {
            int64_t a = start, middle = smaller(start + width, m), b = middle, end = smaller(start + 2 * width, m);
            for (int64_t k = start; k < end; k++)
                to[k] = a < middle && (b >= end || s->low[from[a]] <= s->low[from[b]]) ? from[a++] : from[b++];
        }
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    s->order = from;
    s->spare = to;
}

static int exceeds(Search *s, const Part *part) {
    const Tables *t = s->t;
    int64_t m = part->count, first = FAR, last = 0, top = 0, simple = 0;
    sort_by_low(s, m);
    for (int64_t k = 0; k < m; k++) {
        int64_t i = part->members[k];
        first = smaller(first, t->span_first[i]);
        last = larger(last, t->span_last[i]);
        simple = larger(simple, s->low[k] + t->size[i]);
    }
    /* the stack of every section at once: a life is a run of sections, and most lives are short */
    for (int64_t step = first; step < last; step++) s->stack[step] = 0;
    for (int64_t k = m - 1; k >= 0; k--) {
        int64_t place = s->order[k], i = part->members[place], highest = 0;
        for (int64_t step = t->span_first[i]; step < t->span_last[i]; step++)
            highest = larger(highest, s->stack[step] += t->stacked[i]);
        top = larger(top, s->low[place] + highest);
    }
    top = larger(top - t->slack, simple);
    if (top > s->capacity) s->exceeded = smaller(s->exceeded, top);
    return top > s->capacity;
}

static Key key_of(Search *s, const Part *part) {
    size_t m = (size_t)part->count, length = m * (sizeof(int64_t) + sizeof(int32_t) + 1);
    uint8_t *bytes = take(&s->memory, length);
    if (!bytes) return (Key){0, 0, NULL};
    uint8_t *ids = bytes + m * sizeof(int64_t), *flags = ids + m * sizeof(int32_t);
    for (size_t k = 0; k < m; k++) {
        int32_t i = part->members[k];
        memcpy(bytes + k * sizeof(int64_t), &part->support[i], sizeof(int64_t));
        memcpy(ids + k * sizeof(int32_t), &i, sizeof(int32_t));
        flags[k] = part->skipped[i];
    }
    return (Key){hash_of(bytes, length), length, bytes};
}

/* Push the frame of a part; 0 where a bound or the memory closes it. */
static int expand(Search *s, const Part *part) {
    const Tables *t = s->t;
    int64_t m = part->count, lowest_top = FAR, count = 0;
    s->nodes++;
    if (!low_of(s, part) || exceeds(s, part)) return 0;
    Mark mark = mark_of(&s->memory);
    Key key = key_of(s, part);
    if (!key.bytes) return 0;
    if (holds(&s->failed, &key)) {
        give_back(&s->memory, mark);
        return 0;
    }
    int32_t *candidates = take(&s->memory, (size_t)m * sizeof *candidates);
    if (!candidates) return 0;
    for (int64_t k = 0; k < m; k++) {
        int64_t i = part->members[k];
        s->inside[i] = 1;
        lowest_top = smaller(lowest_top, part->support[i] + t->size[i]);
    }
    for (int64_t k = 0; k < m; k++) {
        int64_t i = part->members[k], at = part->support[i];
        if (part->skipped[i] || at >= lowest_top || (t->twin[i] >= 0 && s->inside[t->twin[i]])) continue;
        int64_t place = count++;
        for (; place; place--) {
            int64_t j = part->members[candidates[place - 1]];
            if (part->support[j] < at || (part->support[j] == at && s->rank[j] <= s->rank[i])) break;
            candidates[place] = candidates[place - 1];
        }
        candidates[place] = (int32_t)k;
    }
    for (int64_t k = 0; k < m; k++) s->inside[part->members[k]] = 0;
    s->frames[s->depth_of_stack++] = (Frame){part, candidates, count, 0, key, mark_of(&s->memory)};
    return 1;
}

/* Put member c of the frame's part at its support; the parts that are left. */
static const Part *place(Search *s, Frame *frame, int64_t depth, int64_t c) {
    const Tables *t = s->t;
    const Part *part = frame->part;
    int64_t n = t->n, m = part->count, i = part->members[c], at = part->support[i], top = at + t->size[i], beside = 0;
    int64_t *support = take(&s->memory, (size_t)n * sizeof *support);
    uint8_t *skipped = take(&s->memory, (size_t)n);
    int32_t *left = take(&s->memory, (size_t)m * sizeof *left);
    if (s->memory.failed) return NULL;
    memcpy(support, part->support, (size_t)n * sizeof *support);
    memcpy(skipped, part->skipped, (size_t)n);
    s->offsets[i] = at;
    for (int64_t k = 0; k < m; k++) {
        int64_t j = part->members[k];
        if (k != c) left[k - (k > c)] = (int32_t)j;
        if (!t->meets[i * n + j]) {
            if (support[j] < at || (support[j] == at && s->rank[j] < s->rank[i])) skipped[j] = 1;
        } else if (support[j] <= top) {
            skipped[j] = 0;
            s->near[beside++] = (int32_t)j;
        }
    }
    for (int64_t k = 0; k < beside; k++) support[s->near[k]] = top;
    for (int64_t k = t->partner_start[i]; k < t->partner_start[i + 1]; k++) {
        int64_t j = t->partners[3 * k];
        for (int64_t l = 0; l < beside; l++)
            if (s->near[l] == j) support[j] = larger(at, part->support[j]);
    }
    for (int64_t k = 0; k < beside; k++) {
        int64_t j = s->near[k];
        support[j] = up(support[j], t->alignment[j]);
        clear_of_pinned(t, j, support);
    }
    if (t->lift) {
        for (int64_t k = 0; k < m; k++) s->inside[part->members[k]] = 1;
        s->inside[i] = 0;
        for (int64_t k = 0; k < beside; k++) clear_of_partners(s, s->near[k], support);
        for (int64_t k = 0; k < m; k++) s->inside[part->members[k]] = 0;
    }
    return parts(s, left, m - 1, support, skipped, depth, part->rest);
}

static int run(Search *s, int64_t nodes, int (*expired)(void)) {
    const Tables *t = s->t;
    int64_t *support = take(&s->memory, (size_t)t->n * sizeof *support);
    uint8_t *skipped = take(&s->memory, (size_t)t->n);
    int32_t *members = take(&s->memory, (size_t)t->n * sizeof *members);
    if (s->memory.failed) return NO_MEMORY;
    memset(support, 0, (size_t)t->n * sizeof *support);
    memset(skipped, 0, (size_t)t->n);
    for (int64_t k = 0; k < t->free_count; k++) {
        members[k] = (int32_t)t->free[k];
        clear_of_pinned(t, members[k], support);
    }
    const Part *part = parts(s, members, t->free_count, support, skipped, -1, NULL);
    while (part) {
        if (s->nodes >= nodes || (s->nodes % 256 == 255 && expired())) return LIMIT;
        int64_t depth = expand(s, part) ? s->depth_of_stack - 1 : part->parent, choice = -1;
        while (choice < 0) {
            if (s->memory.failed) return NO_MEMORY;
            if (depth < 0) return NONE;
            Frame *frame = &s->frames[depth];
            if (frame->next < frame->count) {
                choice = frame->candidates[frame->next++];
            } else {
                if (!add(&s->failed, &frame->key)) return NO_MEMORY;
                depth = frame->part->parent;
            }
        }
        s->depth_of_stack = depth + 1;
        give_back(&s->memory, s->frames[depth].mark);
        part = place(s, &s->frames[depth], depth, choice);
        if (s->memory.failed) return NO_MEMORY;
    }
    return FOUND;
}

/* List the buffers that are live together, from the matrix that says so; 0 where the memory fails. */
static int list_beside(Search *s) {
    int64_t n = s->t->n, count = 0;
    for (int64_t k = 0; k < n * n; k++) count += s->t->meets[k] != 0;
    s->beside_start = malloc((size_t)(n + 1) * sizeof *s->beside_start);
    s->beside = malloc((size_t)(count + 1) * sizeof *s->beside);
    if (!s->beside_start || !s->beside) return 0;
    count = 0;
    for (int64_t i = 0; i < n; i++) {
        s->beside_start[i] = count;
        for (int64_t j = 0; j < n; j++)
            if (s->t->meets[i * n + j]) s->beside[count++] = (int32_t)j;
    }
    s->beside_start[n] = count;
    return 1;
}

/* Only so that linkers that look for a module's entry find one: the library is loaded by ctypes. */
EXPORTED void *PyInit__native(void) { return NULL; }

/* FOUND: `offsets` (n entries, those of pinned buffers set by the caller) hold a layout; NONE: there is none, and no layout
 * is lower than `exceeded`; LIMIT: `nodes` or `expired()`, which is asked now and then, ended the search. */
EXPORTED int tvm_cascade_search_arena(const Tables *t, int64_t capacity, const int64_t *rank, int64_t nodes,
                                      int (*expired)(void), int64_t *offsets, int64_t *exceeded, int64_t *expanded) {
    size_t n = (size_t)t->n;
    Search s = {.t = t, .capacity = capacity, .rank = rank, .exceeded = FAR, .offsets = offsets};
    s.frames = malloc((n + 1) * sizeof *s.frames);
    int64_t *scratch = malloc((n + 1) * (3 * sizeof(int64_t) + 4 * sizeof(int32_t) + 1));
    int result = NO_MEMORY;
    if (s.frames && scratch && list_beside(&s)) {
        s.low = scratch;
        s.raised = scratch + n;
        s.stack = scratch + 2 * n;
        s.order = (int32_t *)(scratch + 3 * n);
        s.spare = s.order + n;
        s.near = s.spare + n;
        s.place_of = s.near + n;
        s.inside = (uint8_t *)(s.place_of + n);
        memset(s.place_of, 0, n * sizeof *s.place_of);
        memset(s.inside, 0, n);
        result = run(&s, nodes, expired);
    }
    *exceeded = s.exceeded;
    *expanded = s.nodes;
    free(scratch);
    free(s.frames);
    free(s.beside_start);
    free(s.beside);
    free(s.failed.slots);
    give_back(&s.failed.memory, (Mark){NULL, 0});
    give_back(&s.memory, (Mark){NULL, 0});
    return result;
}
