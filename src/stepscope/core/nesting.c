/* How spans nest, and which values are distinct: loops that NumPy can only run as many passes over whole arrays.
   `intervals.py` and `arrays.py` say what they mean, and do the same without them. */

#include <stdint.h>

/* To be raised, here and in `arrays.py`, with whatever both have to agree on. */
#define VERSION 3

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

/* For each asked row the innermost wanted one among itself and those around it that were open when it began. Its parent
   was, what is further out may have ended. A number that is none of a row stands for none. */
void nesting_around(int64_t n_asked, const uint32_t *asked, int64_t n, const uint32_t *parents, const int64_t *starts,
                    const int64_t *lengths, const uint8_t *wanted, uint32_t *target) {
    int64_t i, n_passed;
    for (i = 0; i < n_asked; i++) {
        const uint32_t row = asked[i];
        uint32_t at = row;
        target[i] = UINT32_MAX;
        for (n_passed = 0; at < n && n_passed <= n; n_passed++) { /* damaged tables may have circles */
            if (wanted[at] && (n_passed <= 1 || starts[at] + lengths[at] > starts[row])) {
                target[i] = at;
                break;
            }
            at = parents[at];
        }
    }
}

/* The length of each row without what its direct children cover of it. `reach` has room for a time of each row. Returns 0,
   and `own` is of no use, if children of one row overlap or are not in order of time. */
int32_t nesting_own(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *parents, int64_t *reach,
                    int64_t *own) {
    int64_t i;
    for (i = 0; i < n; i++) {
        own[i] = ends[i] > starts[i] ? ends[i] - starts[i] : 0;
        reach[i] = INT64_MIN;
    }
    for (i = 0; i < n; i++) {
        const int64_t above = parents[i];
        int64_t low, high;
        if (above < 0) continue;
        low = starts[i] > starts[above] ? starts[i] : starts[above];
        high = ends[i] < ends[above] ? ends[i] : ends[above];
        if (low < reach[above]) return 0;
        if (high <= low) continue;
        own[above] -= high - low;
        reach[above] = high;
    }
    return 1;
}

/* Numbers distinct values in the order in which they come. `place` has a zero for each value from `low` on; `first` are
   the rows in which values come first. Returns how many there are. */
int64_t nesting_numbered(int64_t n, const uint32_t *values, uint32_t low, uint32_t *place, uint32_t *number,
                         int64_t *first) {
    int64_t i, n_distinct = 0;
    for (i = 0; i < n; i++) {
        uint32_t *mine = place + (values[i] - low);
        if (!*mine) {
            first[n_distinct++] = i;
            *mine = (uint32_t)n_distinct;
        }
        number[i] = *mine - 1;
    }
    return n_distinct;
}
