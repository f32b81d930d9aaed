/*
 * scale.h - how much less a test does where every step is slow.
 *
 * Sanitizers cost a factor of 4 and more. What a test repeats many times is
 * divided by TEST_SCALE: the kinds of steps are the same.
 */
#ifndef KVE_TESTS_SCALE_H
#define KVE_TESTS_SCALE_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_SCALE 25
#elif __has_feature(address_sanitizer)
#define TEST_SCALE 5
#endif
#elif defined(__SANITIZE_THREAD__)
#define TEST_SCALE 25
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_SCALE 5
#endif

#ifndef TEST_SCALE
#define TEST_SCALE 1
#endif

#endif
