/*
 * test_heap.c - deadlines come in order, whatever was put in and taken out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "subscribe/heap.h"

#include <string.h>

enum { N = 200, STEPS = 200000 };

static uint64_t seed = 42;

static uint64_t
next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return seed >> 33;
}

/* Against the plain way: look through all of them. */
static void
test_order(void **state)
{
    static struct kve_heap_node nodes[N];
    struct kve_heap heap = { NULL };

    (void)state;
    memset(nodes, 0, sizeof(nodes));
    for (int step = 0; step < STEPS; step++) {
        struct kve_heap_node *node = &nodes[next_random() % N];
        struct kve_heap_node *first = NULL;

        switch (next_random() % 4) {
        case 0:
            kve_heap_remove(&heap, node);
            break;
        case 1:
            if (heap.top != NULL)
                kve_heap_remove(&heap, heap.top);
            break;
        default:
            kve_heap_remove(&heap, node);
            kve_heap_add(&heap, node, (int64_t)(next_random() % 1000));
            break;
        }
        for (int i = 0; i < N; i++)
            if (nodes[i].in && (first == NULL || nodes[i].due < first->due))
                first = &nodes[i];
        assert_int_equal(heap.top == NULL, first == NULL);
        if (first != NULL)
            assert_int_equal(heap.top->due, first->due);
    }
    int64_t last = 0;
    while (heap.top != NULL) {
        assert_true(heap.top->due >= last);
        last = heap.top->due;
        kve_heap_remove(&heap, heap.top);
    }
    for (int i = 0; i < N; i++)
        assert_false(nodes[i].in);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
    };

    return cmocka_run_group_tests_name("subscribe/heap", tests, NULL, NULL);
}
