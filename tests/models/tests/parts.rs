//! Models of single parts, which lie beside the core's sources (`src/parts.rs`): they are no part of its
//! face.

use crate::explore;

macro_rules! parts {
    ($($test:ident $preemptions:literal $part:ident;)*) => {
        unsafe extern "C-unwind" {
            $(safe fn $part();)*
        }

        $(
            #[test]
            fn $test() {
                explore($preemptions, || $part());
            }
        )*
    };
}

parts! {
    ret_6_a_call_that_returns_twice_is_claimed_once 3 probe_models_claims;
    ret_6_a_call_whose_owner_ends_is_released_once 3 probe_models_orphans;
    ret_7_a_call_that_was_given_up_returns_or_is_taken_again 3 probe_models_given_up;
    ret_2_one_context_at_the_most_owns 3 probe_models_owners;
    hit_7_three_contexts_count_with_one_counter 2 probe_models_counts;
    hit_7_a_share_begins_at_nothing 3 probe_models_shares;
    hit_7_a_counter_of_two_words_is_read_while_it_makes_half_a_turn 3 probe_models_half_turn;
    hit_7_a_counter_of_two_words_is_read_while_it_makes_a_whole_turn 3 probe_models_whole_turn;
    hit_6_steps_without_a_frame_get_back_what_they_have_borrowed 3 probe_models_spares;
    prg_1_two_hits_insert_one_key 3 probe_models_insertions;
    prg_1_sums_are_read_while_another_context_inserts 3 probe_models_reading;
    prg_1_two_hits_number_one_text 3 probe_models_texts;
    prg_1_texts_are_read_while_another_context_numbers_one 3 probe_models_reading_texts;
}
