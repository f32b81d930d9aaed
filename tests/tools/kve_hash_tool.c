/*
 * kve_hash_tool.c - blocks on standard input, what is hashed of them on
 * standard output: for tests that compute the same by other means.
 *
 * A line is a block: words apart by one blank, "-" where there is nothing,
 * texts and bytes in hex with an x before them.
 *
 *     algorithm seed release lookahead parent tokens lora path salt items
 *
 * release is a number of KVE_RELEASE(), parent a digest (else the root),
 * tokens are apart by commas, the last lookahead of them are ahead; so are
 * items: xTEXT@OFFSET for an image, xBYTES for the digest of embeddings. The
 * answer is a line: root, digested bytes, digest; in hex.
 */
#include <kvevents/hash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 10
#define MOST 64 /* items of a block */

struct block {
    struct kve_hash_scheme scheme;
    struct kve_str parent;
    uint32_t *tokens;
    size_t n_tokens;
    struct kve_block_extras extras;
    struct kve_extra_item items[MOST];
};

static void
stop(const char *why)
{
    (void)fprintf(stderr, "kve_hash_tool: %s\n", why);
    exit(2);
}

/* In the place of the hex text itself. */
static struct kve_str
bytes_of(char *word)
{
    size_t n = 0;
    unsigned byte;

    if (word[0] != 'x')
        return (struct kve_str){ NULL, 0 };
    for (; sscanf(word + 1 + 2 * n, "%2x", &byte) == 1; n++)
        word[n] = (char)byte;
    return (struct kve_str){ word, n };
}

static void
read_tokens(char *word, struct block *block)
{
    char *save = NULL;

    block->tokens = realloc(block->tokens, (strlen(word) + 1) * 4);
    if (block->tokens == NULL)
        stop("out of memory");
    block->n_tokens = 0;
    for (char *one = strtok_r(word, ",", &save); one != NULL;
         one = strtok_r(NULL, ",", &save))
        block->tokens[block->n_tokens++] = (uint32_t)strtoul(one, NULL, 10);
}

static void
read_items(char *word, struct block *block)
{
    char *save = NULL;

    block->extras.items = block->items;
    block->extras.n_items = 0;
    if (word[0] == '-')
        return;
    for (char *one = strtok_r(word, ",", &save); one != NULL;
         one = strtok_r(NULL, ",", &save)) {
        struct kve_extra_item *item = &block->items[block->extras.n_items++];
        char *at = strchr(one, '@');
        struct kve_str text;

        if (block->extras.n_items == MOST)
            stop("too many items");
        memset(item, 0, sizeof(*item));
        item->kind = at != NULL ? KVE_EXTRA_IMAGE : KVE_EXTRA_BYTES;
        if (at != NULL)
            item->offset = strtoll(at + 1, NULL, 10);
        if (at != NULL)
            *at = '\0';
        text = bytes_of(one);
        item->text = text;
        item->bytes = (struct kve_span){ (const uint8_t *)text.data, text.len };
    }
}

static void
read_block(char *line, struct block *block)
{
    char *words[WORDS], *save = NULL;
    size_t n = 0;

    for (char *word = strtok_r(line, " \n", &save); word != NULL && n < WORDS;
         word = strtok_r(NULL, " \n", &save))
        words[n++] = word;
    if (n != WORDS)
        stop("a line without 10 words");

    kve_hash_scheme_init(&block->scheme);
    block->scheme.algorithm = kve_hash_algo_find(words[0]);
    block->scheme.seed = bytes_of(words[1]);
    block->scheme.release = (uint32_t)strtoul(words[2], NULL, 10);
    block->scheme.lookahead = (uint32_t)strtoul(words[3], NULL, 10);
    block->parent = bytes_of(words[4]);
    read_tokens(words[5], block);
    block->scheme.block_size =
        (uint32_t)block->n_tokens - block->scheme.lookahead;
    block->extras.lora_name = bytes_of(words[6]);
    block->extras.lora_path = bytes_of(words[7]);
    block->extras.cache_salt = bytes_of(words[8]);
    read_items(words[9], block);
}

static void
put_hex(const uint8_t *bytes, size_t len, char end)
{
    if (bytes == NULL)
        (void)putchar('-');
    for (size_t i = 0; bytes != NULL && i < len; i++)
        (void)printf("%02x", bytes[i]);
    (void)putchar(end);
}

static void
hash_block(const struct block *block)
{
    kve_chain *chain = NULL;
    struct kve_error err;
    struct kve_span bytes;
    size_t len;

    if (kve_chain_create(&block->scheme, &chain, &err) != KVE_OK)
        stop(err.detail);
    len = kve_chain_digest_len(chain);
    put_hex(kve_chain_digest(chain), len, ' ');
    if (block->parent.data != NULL &&
        kve_chain_seek(chain, (const uint8_t *)block->parent.data,
            block->parent.len, &err) != KVE_OK)
        stop(err.detail);
    if (kve_chain_next(chain, block->tokens, block->n_tokens, &block->extras,
            &err) != KVE_OK)
        stop(err.detail);
    bytes = kve_chain_bytes(chain);
    put_hex(bytes.data, bytes.len, ' ');
    put_hex(kve_chain_digest(chain), len, '\n');
    kve_chain_destroy(chain);
}

int
main(void)
{
    static struct block block;
    char *line = NULL;
    size_t cap = 0;

    while (getline(&line, &cap, stdin) > 0) {
        read_block(line, &block);
        hash_block(&block);
    }
    free(line);
    free(block.tokens);
    return 0;
}
