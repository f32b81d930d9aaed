/*
 * heap.c - see heap.h.
 */
#include "subscribe/heap.h"

#include <stddef.h>

/* One tree of two; the later root becomes the first child of the other. */
static struct kve_heap_node *
meld(struct kve_heap_node *a, struct kve_heap_node *b)
{
    if (a == NULL)
        return b;
    if (b == NULL)
        return a;
    if (b->due < a->due) {
        struct kve_heap_node *swap = a;
        a = b;
        b = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child != NULL)
        a->child->prev = b;
    a->child = b;
    return a;
}

/* One tree of a list of siblings: melded in pairs, then all from the end. */
static struct kve_heap_node *
meld_list(struct kve_heap_node *list)
{
    struct kve_heap_node *pairs = NULL; /* linked by prev */
    struct kve_heap_node *all = NULL;

    while (list != NULL) {
        struct kve_heap_node *a = list;
        struct kve_heap_node *b = a->next;

        list = b != NULL ? b->next : NULL;
        a->next = NULL;
        if (b != NULL)
            b->next = NULL;
        a = meld(a, b);
        a->prev = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct kve_heap_node *next = pairs->prev;

        pairs->prev = NULL;
        all = meld(all, pairs);
        pairs = next;
    }
    return all;
}

void
kve_heap_add(struct kve_heap *heap, struct kve_heap_node *node, int64_t due)
{
    node->due = due;
    node->child = NULL;
    node->next = NULL;
    node->prev = NULL;
    node->in = true;
    heap->top = meld(heap->top, node);
}

void
kve_heap_remove(struct kve_heap *heap, struct kve_heap_node *node)
{
    struct kve_heap_node *rest;

    if (!node->in)
        return;
    node->in = false;
    rest = meld_list(node->child);
    node->child = NULL;
    if (node == heap->top) {
        heap->top = rest;
        return;
    }
    if (node->prev->child == node)
        node->prev->child = node->next;
    else
        node->prev->next = node->next;
    if (node->next != NULL)
        node->next->prev = node->prev;
    heap->top = meld(heap->top, rest);
}
