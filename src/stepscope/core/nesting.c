/* How spans nest: two loops that NumPy can only run as many passes over whole arrays. `intervals.py` says what they mean,
   and does the same without them. */

#include <stdint.h>

/* To be raised, here and in `arrays.py`, with whatever both have to agree on. */
#define VERSION 1

int32_t nesting_version(void) { return VERSION; }

/* The parent of each row: the last row before it that is still open. All that are open are the row before, its parent,
   the parent of that, and so on; those of them that have ended are never looked at again. */
void nesting_enclosing(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *groups, int64_t *parents) {
    int64_t i, open = -1;
    for (i = 0; i < n; i++) {
        if (i && groups[i] != groups[i - 1]) open = -1;
        while (open >= 0 && ends[open] <= starts[i]) open = parents[open];
        parents[i] = open;
        open = i;
    }
}

/* For each row the nearest wanted one among itself and its ancestors, -1 if none is. An ancestor that comes before the
   row has its answer already, which is then the row's too. */
#define NEAREST(name, row)                                                                      \
    void name(int64_t n, const row *parents, const uint8_t *wanted, row *target) {              \
        int64_t i, at;                                                                          \
        for (i = 0; i < n; i++) {                                                               \
            for (at = i; at >= i && !wanted[at]; at = parents[at]) {}                           \
            target[i] = at < 0 ? -1 : at < i ? target[at] : (row)at;                            \
        }                                                                                       \
    }

NEAREST(nesting_nearest_32, int32_t)
NEAREST(nesting_nearest_64, int64_t)
