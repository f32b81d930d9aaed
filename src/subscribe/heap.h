/*
 * heap.h - which of many deadlines comes first.
 *
 * A pairing heap whose nodes lie inside what they belong to: nothing is
 * allocated, so that nothing can fail in a loop that has to go on. The top is
 * at hand, moving a node forward is cheap, taking one out costs O(log n) on
 * average. No recursion.
 */
#ifndef KVE_SUBSCRIBE_HEAP_H
#define KVE_SUBSCRIBE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct kve_heap_node {
    int64_t due;
    struct kve_heap_node *child; /* the first one */
    struct kve_heap_node *next;  /* sibling */
    struct kve_heap_node *prev;  /* sibling before it, or its parent */
    bool in;                     /* a heap has it */
};

struct kve_heap {
    struct kve_heap_node *top; /* NULL: empty */
};

/* Put a node in that is in no heap. */
void kve_heap_add(
    struct kve_heap *heap, struct kve_heap_node *node, int64_t due);

/* Take a node out; one that is not in does no harm. */
void kve_heap_remove(struct kve_heap *heap, struct kve_heap_node *node);

#endif
