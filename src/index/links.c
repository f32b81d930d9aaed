/*
 * links.c - see links.h.
 */
#include "index/links.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t
kve_link_key(const kve_index *index, uint64_t first, const char *second)
{
    return XXH3_64bits_withSeed(second, strlen(second), index->secret ^ first);
}

bool
kve_links_room(kve_index *index, struct kve_links *links)
{
    uint32_t cap = links->cap == 0 ? 16 : 2 * links->cap;
    struct kve_link **heads;

    if (links->n < links->cap)
        return true;
    heads = kve_index_alloc(index, cap * sizeof(struct kve_link *));
    if (heads == NULL)
        return links->cap != 0;
    for (uint32_t i = 0; i < links->cap; i++)
        for (struct kve_link *link = links->heads[i], *next; link != NULL;
             link = next) {
            next = link->next;
            link->next = heads[link->key & (cap - 1)];
            heads[link->key & (cap - 1)] = link;
        }
    kve_index_free(index, links->heads, links->cap * sizeof(struct kve_link *));
    links->heads = heads;
    links->cap = cap;
    return true;
}

void
kve_links_release(kve_index *index, struct kve_links *links)
{
    kve_index_free(index, links->heads, links->cap * sizeof(struct kve_link *));
}

void
kve_links_add(struct kve_links *links, struct kve_link *link)
{
    struct kve_link **head = &links->heads[link->key & (links->cap - 1)];

    link->next = *head;
    *head = link;
    links->n++;
}

void
kve_links_remove(struct kve_links *links, struct kve_link *link)
{
    struct kve_link **at = &links->heads[link->key & (links->cap - 1)];

    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    links->n--;
}
