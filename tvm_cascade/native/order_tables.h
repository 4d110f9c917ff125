/* What the searches for operator orders read: `Tables` of tvm_cascade/ordering/compiled.py, the operators of one region and
 * the storages that they read or write, numbered from 0. Lists of lists are flat: those of i lie from `X_start[i]` to
 * `X_start[i + 1]`. */
#ifndef TVM_CASCADE_ORDER_TABLES_H
#define TVM_CASCADE_ORDER_TABLES_H
#include <stdint.h>

typedef struct {
    int64_t n;                               /* operators */
    int64_t live;                            /* bytes live before the region */
    const int64_t *demand, *outliving;       /* by operator: bytes, see `Model` */
    const int64_t *joined, *beside;          /* by operator: storage of which it writes a part, or -1; a flag */
    const int64_t *size, *begun;             /* by storage: bytes; whether a part of it is written before the region */
    const int64_t *reader_start, *reader;    /* by storage: its readers in the region */
    const int64_t *writer_start, *writer;    /* by storage: its writers in the region */
    const int64_t *before_start, *before;    /* by operator: those that must run before it */
    const int64_t *after_start, *after;      /* by operator: those that must run after it */
    const int64_t *dying_start, *dying;      /* by operator: storages that die when it is their last reader */
    const int64_t *over_start, *over;        /* by operator: pairs (storage that it may overwrite, bytes saved) */
} Tables;

typedef int (*IsDone)(const void *done, int64_t op); /* whether an operator is among those that have run */

/* Whether every reader of storage `s` other than `op` has run. */
static inline int read_by_all(const Tables *t, IsDone is_done, const void *done, int64_t op, int64_t s) {
    for (int64_t k = t->reader_start[s]; k < t->reader_start[s + 1]; k++)
        if (t->reader[k] != op && !is_done(done, t->reader[k])) return 0;
    return 1;
}

/* `Model.step`: bytes needed while `op` runs, beyond those that are live, and the change in live bytes that it leaves. */
static inline void step(const Tables *t, IsDone is_done, const void *done, int64_t op, int64_t *need, int64_t *change) {
    *need = t->demand[op];
    *change = t->outliving[op];
    for (int64_t k = t->dying_start[op]; k < t->dying_start[op + 1]; k++)
        if (read_by_all(t, is_done, done, op, t->dying[k])) *change -= t->size[t->dying[k]];
    int64_t joined = t->joined[op];
    if (joined >= 0) {
        int begun = t->begun[joined] != 0;
        for (int64_t k = t->writer_start[joined]; k < t->writer_start[joined + 1] && !begun; k++)
            begun = t->writer[k] != op && is_done(done, t->writer[k]);
        if (begun) {
            *change -= t->size[joined];
            if (!t->beside[op]) *need -= t->size[joined];
        }
    }
    for (int64_t k = t->over_start[op]; k < t->over_start[op + 1]; k++)
        if (read_by_all(t, is_done, done, op, t->over[2 * k])) {
            *need -= t->over[2 * k + 1];
            return;
        }
}
#endif
