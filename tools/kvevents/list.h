/*
 * list.h - lists of tokens, hashes and images that people give.
 *
 * Items stand between blanks, commas and line ends; brackets and quotes around
 * them are passed over, so that a JSON list is one, too:
 *
 *     1,2,3      1 2 3      [1, 2, 3]      ["0x1f", "a0b1..."]
 *
 * Token ids are users' text: an error names the place of a bad item, not what
 * stands there.
 */
#ifndef KVEVENTS_TOOL_LIST_H
#define KVEVENTS_TOOL_LIST_H

#include <kvevents/event.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command;

/* Most items of a list. */
#define LIST_MOST ((size_t)1 << 26)

/* The value of a hex digit, or -1. */
int hex_digit(char c);

struct token_list {
    uint32_t *items;
    size_t n;
    size_t cap;
};

struct number_list {
    uint64_t *items;
    size_t n;
    size_t cap;
};

/* Engine hashes, and the bytes that they point to. */
struct hash_list {
    struct kve_hash *items;
    size_t n;
    size_t cap;
    uint8_t **bytes;
    size_t n_bytes;
    size_t cap_bytes;
};

/* An image of a prompt: ID@OFFSET+LENGTH. */
struct image {
    struct kve_str id; /* borrowed */
    uint32_t offset;
    uint32_t n_tokens;
};

/* Append what a text lists. On failure a line is said, with name before it:
 * an option, or a file. Release the list all the same. */
bool token_list_add(struct token_list *list, const struct command *command,
    const char *name, const char *text, size_t len);
bool number_list_add(struct number_list *list, const struct command *command,
    const char *name, const char *text, size_t len);
bool hash_list_add(struct hash_list *list, const struct command *command,
    const char *name, const char *text, size_t len);

/* The same from a file, or from standard input for "-". */
bool token_list_read(
    struct token_list *list, const struct command *command, const char *path);

void token_list_release(struct token_list *list);
void number_list_release(struct number_list *list);
void hash_list_release(struct hash_list *list);

/* Read one image; complains when it is none. */
bool image_read(
    const struct command *command, const char *text, struct image *ret_image);

/* Make room for one item more in an array; items is the address of its
 * pointer, size that of an item. false: no memory. */
bool list_grow(void *items, size_t *cap, size_t n, size_t size);

#endif
