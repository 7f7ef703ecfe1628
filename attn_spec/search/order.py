"""Order in which properties are searched: those that find most in the least time come first.

The order comes from the measured kill matrix: mutants by properties with their seconds. It was measured for kernels
that declare everything, no mask, no backward pass, or little beside causal attention. The accuracy of the output comes
first, since it states plainly what is wrong. Each further property refutes the most remaining mutants per second.
``python -m attn_spec.reports.proof.first_refutation`` measures the effect.
"""

from __future__ import annotations

#: Ids of properties that come first; the others follow in the order of their files.
FIRST = (
    "accuracy.output_is_within_its_bound",
    "gradients.query_and_key_gradients_are_within_their_bounds",
    "online_rescaling.the_maximum_may_move_anywhere",
    "gradients.the_cotangent_of_the_log_sum_exp_is_honored",
    "special_values.dot_products_beyond_float16_do_not_overflow",
    "gradient_laws.a_constant_added_to_all_scores_changes_no_gradient",
    "gradients.gradients_of_a_scores_parameters_are_within_their_bounds",
    "online_rescaling.negating_v_negates_the_output",
    "special_values.a_nan_in_v_reaches_its_column_of_the_rows_that_see_it",
    "permutation.queries_carry_their_answers_along",
    "gradient_independence.each_gradient_may_be_asked_for_without_the_others",
    "gradient_independence.an_expanded_cotangent_is_read_right",
    "gradients.keys_that_no_query_sees_change_no_gradient",
    "masking.no_keys_or_no_queries_is_no_error",
    "accuracy.softcapped_scores_give_an_answer_within_its_bound",
    "independence.a_batch_entry_alone_gives_its_answer",
    "masking.a_padded_sequence_is_solved_as_the_shorter_one",
    "independence.expanded_views_are_read_right",
    "temperature.one_visible_key_gives_its_value",
    "masking.a_mask_is_a_bias_of_minus_infinity",
    "special_values.huge_values_do_not_overflow",
    "softmax.outputs_lie_in_the_hull_of_the_visible_values",
)
_RANKS = {property_id: rank for rank, property_id in enumerate(FIRST)}


def rank(property_id: str) -> int:
    """Return the place of a property in the order; smaller is earlier."""
    return _RANKS.get(property_id, len(FIRST))
