/* Events of a Chrome trace: from the text of a JSON array to columns of numbers, in one pass.

   It knows JSON and a list of fields, and nothing of what they mean: `scan.py` hands it the fields and reads the columns.
   Whatever is not plainly as the list says (a type, an escape, damage, a number that does not fit) is left to the
   decoder in Python, from the element in which it stands: so this accepts less than that one, and never something else.

   Texts are numbered: a column has the number of the JSON value as it is written, quotes included; 0 is absent. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* To be raised, here and in `scanner.py`, with whatever both have to agree on. */
#define VERSION 1
#define ABSENT (-((int64_t)1 << 62))
#define MOST_DEPTH 48
#define MOST_FIELDS 96
#define MOST_TABLES 8
#define MOST_DIGITS 18

enum { SKIP, INTEGER, FLOAT, NANOSECONDS, TEXT, VALUE, SCALAR, PHASE, OBJECT, LEAVE };
enum { MORE, END, LEFT, FULL };

typedef struct {
    const char *key; /* with its quotes */
    int32_t key_size, type, table, column, is_nullable, is_bare; /* bare: a number that is not in quotes */
} Field;

typedef struct {
    uint64_t hash, offset;
    uint32_t size, unused;
} Entry;

typedef struct {
    Entry *entries;
    uint32_t *slots;
    char *bytes;
    uint64_t n_bytes, most_bytes;
    uint32_t n, most, mask;
} Table;

typedef struct {
    Field fields[2][MOST_FIELDS];
    int32_t n_fields[2];
    int32_t slot_of[2][256];         /* of a field, by the hash of its key; fields with one hash follow each other */
    int32_t after[2][MOST_FIELDS + 1]; /* the field that came after this one last */
    int32_t touched[MOST_FIELDS], n_touched;
    uint8_t is_touched[MOST_FIELDS], was_touched[MOST_FIELDS];
    int32_t types[MOST_FIELDS], n_columns; /* by column */
    int32_t combined[4], combination;    /* columns of numbers, and that of the number of their combination */
    Table tables[MOST_TABLES];
    int32_t combination_table;
    uint32_t last[MOST_FIELDS];
    int64_t most, n_before;
    void *columns[MOST_FIELDS];
    int is_failed, is_left;
} Scanner;

typedef struct {
    int64_t n_events, n_rest, border;
    int32_t status, unused;
} Result;

/* ---- texts and their numbers ---- */

static uint64_t hash_of(const char *p, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ (n * 0xff51afd7ed558ccdu), w;
    while (n >= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9FB21C651E98DF25u;
        h ^= h >> 29;
        p += 8;
        n -= 8;
    }
    if (n) {
        w = 0;
        memcpy(&w, p, n);
        h = (h ^ w) * 0x9FB21C651E98DF25u;
        h ^= h >> 29;
    }
    return h ^ (h >> 32);
}

static int is_entry(const Table *t, uint32_t number, const char *p, size_t n) {
    const Entry *e = &t->entries[number - 1];
    return e->size == n && !memcmp(t->bytes + e->offset, p, n);
}

static int grow_slots(Table *t) {
    uint32_t size = t->mask ? (t->mask + 1) * 2 : 256, i;
    uint32_t *slots = calloc(size, sizeof *slots);
    if (!slots) return 0;
    for (i = 0; i < t->n; i++) {
        uint32_t at = (uint32_t)t->entries[i].hash & (size - 1);
        while (slots[at]) at = (at + 1) & (size - 1);
        slots[at] = i + 1;
    }
    free(t->slots);
    t->slots = slots;
    t->mask = size - 1;
    return 1;
}

/* The number of a text, from 1; 0 if there is no memory. */
static uint32_t number_of(Table *t, const char *p, size_t n) {
    uint64_t hash = hash_of(p, n);
    uint32_t at;
    if (2 * (uint64_t)t->n >= t->mask && !grow_slots(t)) return 0;
    for (at = (uint32_t)hash & t->mask; t->slots[at]; at = (at + 1) & t->mask)
        if (t->entries[t->slots[at] - 1].hash == hash && is_entry(t, t->slots[at], p, n)) return t->slots[at];
    if (t->n == t->most) {
        uint32_t most = t->most ? 2 * t->most : 64;
        Entry *entries = most < (1u << 30) ? realloc(t->entries, most * sizeof *entries) : NULL;
        if (!entries) return 0;
        t->entries = entries;
        t->most = most;
    }
    if (t->n_bytes + n > t->most_bytes) {
        uint64_t most = 2 * t->most_bytes + n + 1024;
        char *bytes = realloc(t->bytes, most);
        if (!bytes) return 0;
        t->bytes = bytes;
        t->most_bytes = most;
    }
    memcpy(t->bytes + t->n_bytes, p, n);
    t->entries[t->n] = (Entry){hash, t->n_bytes, (uint32_t)n, 0};
    t->n_bytes += n;
    t->slots[at] = ++t->n;
    return t->n;
}

/* ---- JSON: each returns the place after what it read; NULL if the text ends before, or it is left ---- */

static const char *left(Scanner *s) {
    s->is_left = 1;
    return NULL;
}

static inline const char *blanks(const char *p, const char *end) {
    if (p < end && (unsigned char)*p > ' ') return p;
#if defined(__SSE2__)
    while (p + 16 <= end) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        __m128i b = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\n')));
        int others = _mm_movemask_epi8(b) ^ 0xffff;
        if (others) {
            p += __builtin_ctz((unsigned)others);
            if (*p != '\t' && *p != '\r') return p;
            p++;
        } else
            p += 16;
    }
#endif
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
}

static int is_hex(unsigned char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Bytes of the UTF-8 character at p, which is none of ASCII; 0 if it is none, or not whole. */
static int utf8(const unsigned char *p, const unsigned char *end) {
    int n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2, i;
    if (p[0] < 0xc2 || p[0] > 0xf4 || end - p < n) return 0;
    for (i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f)) return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) return 0;
    return n;
}

/* p is after the opening quote. */
static inline const char *string(Scanner *s, const char *p, const char *end) {
    for (;;) {
        unsigned char c;
#if defined(__SSE2__)
        while (p + 16 <= end) {
            __m128i v = _mm_loadu_si128((const __m128i *)p);
            __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
            /* As signed numbers, control characters and all beyond ASCII are less than a blank. */
            int found = _mm_movemask_epi8(_mm_or_si128(stops, _mm_cmplt_epi8(v, _mm_set1_epi8(' '))));
            if (found) {
                p += __builtin_ctz((unsigned)found);
                break;
            }
            p += 16;
        }
#endif
        if (p >= end) return NULL;
        c = (unsigned char)*p;
        if (c == '"') return p + 1;
        if (c == '\\') {
            if (end - p < 6) return NULL;
            if (p[1] == 'u') {
                int is_sound = is_hex(p[2]) && is_hex(p[3]) && is_hex(p[4]) && is_hex(p[5]);
                if (!is_sound || ((p[2] | 32) == 'd' && p[3] >= '8')) return left(s); /* half of a pair */
                p += 6;
            } else {
                if (!p[1] || !strchr("\"\\/bfnrt", p[1])) return left(s);
                p += 2;
            }
        } else if (c < ' ')
            return left(s);
        else if (c < 0x80)
            p++;
        else {
            int n = utf8((const unsigned char *)p, (const unsigned char *)end);
            if (!n) return end - p < 4 ? NULL : left(s);
            p += n;
        }
    }
}

static inline int is_digit(char c) { return c >= '0' && c <= '9'; }

/* A number as JSON has it. */
static const char *number(Scanner *s, const char *p, const char *end) {
    if (p < end && *p == '-') p++;
    if (p >= end) return NULL;
    if (!is_digit(*p) || (*p == '0' && p + 1 < end && is_digit(p[1]))) return left(s);
    while (p < end && is_digit(*p)) p++;
    if (p < end && *p == '.') {
        p++;
        if (p < end && !is_digit(*p)) return left(s);
        while (p < end && is_digit(*p)) p++;
    }
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        if (p < end && !is_digit(*p)) return left(s);
        while (p < end && is_digit(*p)) p++;
    }
    return p < end ? p : NULL;
}

static const char *literal(Scanner *s, const char *p, const char *end, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(end - p) < n) return NULL;
    return memcmp(p, word, n) ? left(s) : p + n;
}

/* Any value. */
static const char *value(Scanner *s, const char *p, const char *end, int depth) {
    if (p >= end) return NULL;
    switch (*p) {
    case '"':
        return string(s, p + 1, end);
    case '{':
    case '[': {
        const char closes = *p == '{' ? '}' : ']';
        if (depth == MOST_DEPTH) return left(s);
        p = blanks(p + 1, end);
        if (p < end && *p == closes) return p + 1;
        for (;;) {
            if (closes == '}') {
                if (p >= end) return NULL;
                if (*p != '"') return left(s);
                if (!(p = string(s, p + 1, end))) return NULL;
                p = blanks(p, end);
                if (p >= end) return NULL;
                if (*p != ':') return left(s);
                p = blanks(p + 1, end);
            }
            if (!(p = value(s, p, end, depth + 1))) return NULL;
            p = blanks(p, end);
            if (p >= end) return NULL;
            if (*p == closes) return p + 1;
            if (*p != ',') return left(s);
            p = blanks(p + 1, end);
        }
    }
    case 't':
        return literal(s, p, end, "true");
    case 'f':
        return literal(s, p, end, "false");
    case 'n':
        return literal(s, p, end, "null");
    default:
        return number(s, p, end);
    }
}

/* ---- numbers as columns hold them ---- */

static inline int is_after_number(char c) { return c == ',' || c == '}' || c == '\n' || c == ' ' || c == '\r' || c == '\t'; }

/* A whole number, which may stand in quotes as some recorders write it. */
static inline const char *integer(Scanner *s, const char *p, const char *end, int64_t *result) {
    const int is_quoted = *p == '"';
    int64_t n = 0;
    int is_negative = 0;
    const char *first;
    p += is_quoted;
    if (p < end && *p == '-') is_negative = 1, p++;
    for (first = p; p < end && is_digit(*p); p++) {
        if (p - first == MOST_DIGITS) return left(s);
        n = 10 * n + (*p - '0');
    }
    if (p >= end) return NULL;
    if (p == first || (*first == '0' && p > first + 1)) return left(s);
    if (is_quoted ? *p != '"' : !is_after_number(*p)) return left(s);
    *result = is_negative ? -n : n;
    return p + is_quoted;
}

static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* A number as the double next to it. */
static inline const char *floating(Scanner *s, const char *p, const char *end, double *result) {
    const char *first = p, *digits;
    const int is_quoted = *p == '"';
    int is_negative = 0, n_decimals = 0;
    uint64_t n = 0;
    p = first += is_quoted;
    if (p < end && *p == '-') is_negative = 1, p++;
    for (digits = p; p < end && is_digit(*p); p++) n = 10 * n + (uint64_t)(*p - '0');
    if (p >= end) return NULL;
    if (p == digits || (*digits == '0' && p > digits + 1)) return left(s);
    if (*p == '.') {
        const char *point = p++;
        for (; p < end && is_digit(*p); p++) n = 10 * n + (uint64_t)(*p - '0');
        if (p >= end) return NULL;
        n_decimals = (int)(p - point - 1);
        if (!n_decimals) return left(s);
    }
    if (p - digits <= 17 && n <= (uint64_t)1 << 53 && (*p | 32) != 'e') {
        /* Both are exact, so their ratio is rounded once. */
        *result = (double)n / POWERS[n_decimals];
        if (is_negative && (n || n_decimals)) *result = -*result; /* -0 is a whole number, which has no such sign */
    } else {
        char copy[64], *after;
        if (!(p = number(s, first, end))) return NULL;
        if (p - first >= (ptrdiff_t)sizeof copy) return left(s);
        memcpy(copy, first, (size_t)(p - first));
        copy[p - first] = 0;
        *result = strtod(copy, &after);
        /* With a locale whose decimals begin with a comma it would stop before. */
        if (after != copy + (p - first) || isinf(*result)) return left(s);
    }
    if (is_quoted ? *p != '"' : !is_after_number(*p)) return left(s);
    return p + is_quoted;
}

/* Microseconds, which may stand in quotes, as nanoseconds: what is halfway between two goes to the even one. */
static const char *nanoseconds(Scanner *s, const char *p, const char *end, int64_t *result) {
    const int is_quoted = *p == '"';
    int is_negative = 0, n_decimals = 0, is_more = 0, dropped = 0;
    int64_t n = 0;
    const char *first;
    p += is_quoted;
    if (p < end && *p == '-') is_negative = 1, p++;
    for (first = p; p < end && is_digit(*p); p++) {
        if (p - first == 15) return left(s);
        n = 10 * n + (*p - '0');
    }
    if (p >= end) return NULL;
    if (p == first || (*first == '0' && p > first + 1)) return left(s);
    if (*p == '.') {
        for (p++; p < end && is_digit(*p); p++, n_decimals++) {
            if (n_decimals < 3) n = 10 * n + (*p - '0');
            else if (n_decimals == 3) dropped = *p - '0';
            else is_more |= *p != '0';
            if (n_decimals == 9) return left(s);
        }
        if (p >= end) return NULL;
        if (!n_decimals) return left(s);
    }
    for (; n_decimals < 3; n_decimals++) n *= 10;
    if (dropped > 5 || (dropped == 5 && (is_more || n % 2))) n++;
    if (is_quoted ? *p != '"' : !is_after_number(*p)) return left(s);
    *result = is_negative ? -n : n;
    return p + is_quoted;
}

/* ---- objects ---- */

static inline void touch(Scanner *s, int column) {
    if (!s->is_touched[column]) {
        s->is_touched[column] = 1;
        s->touched[s->n_touched++] = column;
    }
    s->was_touched[column] = 1;
}

static void set_absent(Scanner *s, int column, int64_t from, int64_t to) {
    int64_t i;
    switch (s->types[column]) {
    case INTEGER:
    case NANOSECONDS:
        for (i = from; i < to; i++) ((int64_t *)s->columns[column])[i] = ABSENT;
        break;
    case FLOAT:
        for (i = from; i < to; i++) ((double *)s->columns[column])[i] = NAN;
        break;
    default:
        memset((uint32_t *)s->columns[column] + from, 0, (size_t)(to - from) * sizeof(uint32_t));
    }
}

static inline int bucket(const char *key, size_t n) {
    return (int)(((unsigned char)key[1] * 7u + (unsigned char)key[n / 2] * 31u + (unsigned char)key[n - 2] * 61u + n) & 255);
}

/* The field with the key (in its quotes), −1 for none. */
static inline int field_of(const Scanner *s, int level, const char *key, size_t n) {
    int at = bucket(key, n);
    for (; s->slot_of[level][at]; at = (at + 1) & 255) {
        const Field *f = &s->fields[level][s->slot_of[level][at] - 1];
        if ((size_t)f->key_size == n && !memcmp(f->key, key, n)) return s->slot_of[level][at] - 1;
    }
    return -1;
}

static const char *object(Scanner *s, const char *p, const char *end, int level, int64_t row);

static inline const char *read_field(Scanner *s, const Field *f, const char *p, const char *end, int level, int64_t row) {
    const char *first = p;
    const int c = f->column;
    uint32_t code;
    if (*p == 'n' && f->type >= INTEGER && f->type != VALUE && f->type < PHASE) {
        if (!f->is_nullable) return left(s);
        if (!(p = literal(s, p, end, "null"))) return NULL;
        if (c < 0) return p;
        if (f->type == TEXT || f->type == SCALAR) goto numbered;
        if (s->is_touched[c]) set_absent(s, c, row, row + 1); /* the key was there before */
        return p;
    }
    switch (f->type) {
    case INTEGER: {
        int64_t n;
        if (f->is_bare && *p == '"') return left(s);
        if (!(p = integer(s, p, end, &n))) return NULL;
        if (c >= 0) ((int64_t *)s->columns[c])[row] = n, touch(s, c);
        return p;
    }
    case FLOAT: {
        double x;
        if (!(p = floating(s, p, end, &x))) return NULL;
        if (c >= 0) ((double *)s->columns[c])[row] = x, touch(s, c);
        return p;
    }
    case NANOSECONDS: {
        int64_t n;
        if (!(p = nanoseconds(s, p, end, &n))) return NULL;
        if (c >= 0) ((int64_t *)s->columns[c])[row] = n, touch(s, c);
        return p;
    }
    case TEXT:
        if (*p != '"') return left(s);
        if (!(p = string(s, p + 1, end))) return NULL;
        break;
    case SCALAR:
        if (*p == '"') {
            if (!(p = string(s, p + 1, end))) return NULL;
        } else {
            int64_t n;
            if (!(p = integer(s, p, end, &n))) return NULL;
        }
        break;
    case VALUE:
        if (!(p = value(s, p, end, 2))) return NULL;
        break;
    case PHASE:
        if (*p != '"') return left(s);
        if (!(p = string(s, p + 1, end))) return NULL;
        ((uint32_t *)s->columns[c])[row] = p - first == 3 ? (uint32_t)(unsigned char)first[1] : 0;
        touch(s, c);
        return p;
    case OBJECT:
        if (*p != '{' || level || s->last[MOST_FIELDS - 1] == (uint32_t)row + 1) return left(s);
        s->last[MOST_FIELDS - 1] = (uint32_t)row + 1; /* arguments come once */
        return object(s, p, end, 1, row);
    case LEAVE:
        return left(s);
    default:
        return value(s, p, end, 2);
    }
    if (c < 0) return p;
numbered:
    code = s->last[c];
    if (!code || !is_entry(&s->tables[f->table], code, first, (size_t)(p - first))) {
        code = number_of(&s->tables[f->table], first, (size_t)(p - first));
        if (!code) {
            s->is_failed = 1;
            return NULL;
        }
        s->last[c] = code;
    }
    ((uint32_t *)s->columns[c])[row] = code;
    touch(s, c);
    return p;
}

static const char *object(Scanner *s, const char *p, const char *end, int level, int64_t row) {
    int before = MOST_FIELDS;
    p = blanks(p + 1, end);
    if (p < end && *p == '}') return p + 1;
    for (;;) {
        int field = s->after[level][before];
        if (p >= end) return NULL;
        if (*p != '"') return left(s);
        if (field >= 0 && end - p > s->fields[level][field].key_size &&
            !memcmp(p, s->fields[level][field].key, (size_t)s->fields[level][field].key_size)) {
            p += s->fields[level][field].key_size;
        } else {
            const char *key = p;
            if (!(p = string(s, p + 1, end))) return NULL;
            if (memchr(key, '\\', (size_t)(p - key))) return left(s);
            field = p - key > 2 ? field_of(s, level, key, (size_t)(p - key)) : -1;
            if (field >= 0) s->after[level][before] = field;
        }
        if (field >= 0) before = field;
        p = blanks(p, end);
        if (p >= end) return NULL;
        if (*p != ':') return left(s);
        p = blanks(p + 1, end);
        if (p >= end) return NULL;
        p = field >= 0 ? read_field(s, &s->fields[level][field], p, end, level, row) : value(s, p, end, level + 1);
        if (!p) return NULL;
        p = blanks(p, end);
        if (p >= end) return NULL;
        if (*p == '}') return p + 1;
        if (*p != ',') return left(s);
        p = blanks(p + 1, end);
    }
}

/* ---- what is called from outside ---- */

int32_t scan_version(void) { return VERSION; }

void scan_free(Scanner *s) {
    int i;
    if (!s) return;
    for (i = 0; i < MOST_TABLES; i++) {
        free(s->tables[i].entries);
        free(s->tables[i].slots);
        free(s->tables[i].bytes);
    }
    free(s);
}

/* The fields of an event, those of its arguments, and columns of `most` rows. The keys must stay where they are. */
Scanner *scan_new(const Field *fields, int32_t n_fields, const Field *arguments, int32_t n_arguments, void **columns,
                  const int32_t *types, int32_t n_columns, int64_t most, const int32_t *combined, int32_t table) {
    Scanner *s = calloc(1, sizeof *s);
    int level, i;
    if (!s || n_fields >= MOST_FIELDS || n_arguments >= MOST_FIELDS || n_columns >= MOST_FIELDS - 1) {
        free(s);
        return NULL;
    }
    for (level = 0; level < 2; level++) {
        s->n_fields[level] = level ? n_arguments : n_fields;
        for (i = 0; i <= MOST_FIELDS; i++) s->after[level][i] = -1;
        for (i = 0; i < s->n_fields[level]; i++) {
            const Field *f = &(level ? arguments : fields)[i];
            int at = bucket(f->key, (size_t)f->key_size);
            s->fields[level][i] = *f;
            while (s->slot_of[level][at]) at = (at + 1) & 255;
            s->slot_of[level][at] = i + 1;
        }
    }
    s->n_columns = n_columns;
    for (i = 0; i < n_columns; i++) {
        s->columns[i] = columns[i];
        s->types[i] = types[i];
        s->was_touched[i] = 1;
    }
    memcpy(s->combined, combined, sizeof s->combined);
    s->combination = combined[4];
    s->combination_table = table;
    s->most = s->n_before = most;
    return s;
}

/* Read elements of an array from `start` on. Those whose phase is one of `phases` become rows of the columns; of others
   first and last place are put into `rest`. The result says how many there were, and the comma or bracket after the
   last one that was read. */
void scan(Scanner *s, const char *text, int64_t size, int64_t start, const char *phases, int64_t *rest, Result *result) {
    const char *p = text + start, *end = text + size;
    int i, phase = s->fields[0][0].column;
    int64_t row = 0;
    result->n_rest = 0;
    result->border = start - 1;
    result->status = MORE;
    for (i = 0; i < s->n_columns; i++) {
        if (s->was_touched[i]) set_absent(s, i, 0, s->n_before);
        s->was_touched[i] = s->is_touched[i] = 0;
    }
    s->n_before = s->n_touched = 0;
    s->is_left = s->is_failed = 0;
    s->last[MOST_FIELDS - 1] = 0;
    p = blanks(p, end);
    if (p < end && *p == ']') {
        result->border = p - text;
        result->status = END;
        result->n_events = 0;
        return;
    }
    for (;;) {
        const char *first = p;
        uint32_t code;
        p = blanks(p, end);
        if (p >= end) break;
        if (row == s->most || result->n_rest == s->most) {
            result->status = FULL;
            break;
        }
        s->n_touched = 0;
        s->last[MOST_FIELDS - 1] = 0;
        first = p;
        p = *p == '{' ? object(s, p, end, 0, row) : left(s);
        if (s->n_before < row + 1) s->n_before = row + 1;
        if (p) p = blanks(p, end);
        if (!p || p >= end) break;
        if (*p != ',' && *p != ']') {
            s->is_left = 1;
            break;
        }
        code = s->is_touched[phase] ? ((uint32_t *)s->columns[phase])[row] : 0;
        if (code && strchr(phases, (int)code)) {
            uint32_t key[4];
            for (i = 0; i < 4; i++) key[i] = ((uint32_t *)s->columns[s->combined[i]])[row];
            code = s->last[s->combination];
            if (!code || !is_entry(&s->tables[s->combination_table], code, (const char *)key, sizeof key))
                code = number_of(&s->tables[s->combination_table], (const char *)key, sizeof key);
            if (!code) {
                s->is_failed = 1;
                break;
            }
            s->last[s->combination] = code;
            ((uint32_t *)s->columns[s->combination])[row] = code;
            s->was_touched[s->combination] = 1;
            row++;
        } else {
            const char *last = p;
            rest[2 * result->n_rest] = first - text;
            rest[2 * result->n_rest + 1] = last - text;
            result->n_rest++;
            for (i = 0; i < s->n_touched; i++) set_absent(s, s->touched[i], row, row + 1);
        }
        for (i = 0; i < s->n_touched; i++) s->is_touched[s->touched[i]] = 0;
        result->border = p - text;
        if (*p == ']') {
            result->status = END;
            break;
        }
        p++;
    }
    for (i = 0; i < s->n_touched; i++) s->is_touched[s->touched[i]] = 0;
    if (s->is_left || s->is_failed) result->status = LEFT;
    result->n_events = row;
}

/* How many texts a table has. */
uint32_t scan_count(const Scanner *s, int32_t table) { return s->tables[table].n; }

/* The texts from number `first` + 1 on, one after the other, their sizes, and how many bytes they have. */
const char *scan_texts(const Scanner *s, int32_t table, uint32_t first, uint32_t *sizes, uint64_t *n_bytes) {
    const Table *t = &s->tables[table];
    uint64_t at = first < t->n ? t->entries[first].offset : t->n_bytes;
    uint32_t i;
    for (i = first; i < t->n; i++) sizes[i - first] = t->entries[i].size;
    *n_bytes = t->n_bytes - at;
    return t->bytes + at;
}

/* Whether any row of the last call has a value in the column. */
int32_t scan_has(const Scanner *s, int32_t column) { return s->was_touched[column]; }
