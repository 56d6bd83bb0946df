"""Where each specified behaviour of planning and cleaning is tested, by its number.

The headings of `cases/*.txt` begin with numbers, and scenarios of Kafka name theirs; the others are here. To see all:

    python -m tests.cleaning.test_case_numbers
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.cleaning.test_scenarios import NOT_AT_ALL, PARTLY, SCENARIOS
from tests.cleaning.transcript import FOLDER, cases

ROOT = Path(__file__).parent.parent
#: By the groups of the specification; those of the state machine, swaps and the log manager are not about cleaning.
GROUPS = {
    "offset map": "1-10",
    "building the map": "11-23",
    "selection": "24-48",
    "grouping": "67-73",
    "record retention": "74-87, 86b",
    "tombstones": "88-97",
    "transactions": "98-116, 116b",
    "idempotent producers": "117-124",
    "filter": "125-138",
    "buffers and errors": "139-146",
}
TESTS = {
    "cleaning/test_offset_map.py::test_1_every_key_that_was_put_is_found": "1",
    "cleaning/test_offset_map.py::test_2_nothing_is_left_after_clear": "2",
    "cleaning/test_offset_map.py::test_3_4_8_a_full_map_finds_what_it_has_and_takes_nothing_more": "3, 4, 8",
    "cleaning/test_offset_map.py::test_5_6_the_last_put_of_a_key_counts_whatever_its_offset": "5, 6",
    "cleaning/test_offset_map.py::test_7_utilization_is_the_part_of_the_slots_that_is_taken": "7",
    "cleaning/test_offset_map.py::test_9_keys_stand_in_the_slots_of_kafkas_map": "9",
    "cleaning/test_offset_map.py::test_11_the_map_of_a_range_has_the_keys_of_that_range": "11",
    "cleaning/test_offset_map.py::test_13_a_map_that_is_filled_to_its_limit_says_where_it_stopped": "13",
    "cleaning/test_offset_map.py::test_22_the_size_of_what_is_read_at_once_makes_no_difference": "22",
    "cleaning/test_plan.py::test_the_dirtier_a_log_the_larger_its_ratio": "24",
    "cleaning/test_plan.py::test_dirty_section_starts_at_the_checkpoint_unless_that_lies_outside_of_the_log": "28-34",
    "cleaning/test_plan.py::test_a_log_of_one_segment_has_nothing_to_clean": "30, 31",
    "cleaning/test_plan.py::test_range_ends_at_the_high_watermark_rounded_down_to_a_segment": "35",
    "cleaning/test_plan.py::test_range_ends_at_the_active_segment_at_the_latest": "36, 48",
    "cleaning/test_plan.py::test_range_ends_at_the_first_segment_that_is_too_young": "37, 38",
    "cleaning/test_plan.py::test_range_ends_at_the_first_open_transaction": "39",
    "cleaning/test_plan.py::test_clean_and_cleanable_bytes_are_those_of_whole_segments": "40, 41",
    "cleaning/test_plan.py::test_a_ratio_that_is_just_reached_is_not_enough": "42",
    "cleaning/test_plan.py::test_what_waited_for_longer_than_the_max_lag_is_cleaned_whatever_the_ratio": "43, 44",
    "cleaning/test_plan.py::test_segments_without_a_time_are_never_overdue": "45",
    "cleaning/test_plan.py::test_damage_in_the_range_is_refused_and_elsewhere_is_not": "46",
    "spark/test_planning.py::test_plans_of_the_numbered_cases_are_kafkas": "28-41, 43-45, 47, 48",
    "cleaning/test_plan.py::test_groups_grow_to_the_limits_of_bytes_and_index_entries": "67-69",
    "cleaning/test_plan.py::test_groups_end_where_offsets_no_longer_fit_the_first_base": "70-72",
    "cleaning/test_plan.py::test_groups_go_by_sizes_before_the_clean": "73",
    "cleaning/test_examples.py::test_a_mixed_segment": "80, 138",
    "cleaning/test_examples.py::test_a_horizon_on_a_mixed_batch": "90",
    "cleaning/test_examples.py::test_an_emptied_batch_and_its_transaction_index": "115",
    "cleaning/test_examples.py::test_what_is_left_of_a_wrapper_of_magic_1": "136",
    "cleaning/test_clean.py::test_cleans_leave_what_the_plain_cleaner_leaves": "22, 133",
    "cleaning/test_scenarios.py::test_producers_come_back_with_the_sequences_that_duplicates_are_known_by": "118",
    "cleaning/test_scenarios.py::test_batches_keep_their_leader_epoch_and_old_ones_have_none": "125",
    "storage/test_segment.py::test_a_file_that_ends_inside_a_batch_is_torn_there": "137",
    "storage/test_segment.py::test_reading_goes_on_behind_damage_where_batches_start_again": "137",
    "cleaning/test_clean.py::test_a_segment_whose_offsets_span_too_much_becomes_several": "146",
    "spark/test_planning.py::test_a_closed_segment_that_ends_within_a_batch_is_refused": "142",
}
#: Of a cleaner that lives in a broker.
NOT_HERE = {
    "144": "io.buffer.size is Kafka's: nothing here reads through a buffer that is too small for a batch, or grows",
}


def numbers(text: str) -> Iterator[str]:
    """`8, 11-13, 86b` one by one."""
    for part in re.findall(r"(?<!X)\b\d+(?:-\d+|[a-z])?", text):
        first, _, last = part.partition("-")
        yield from (map(str, range(int(first), int(last) + 1)) if last else [part])


def places() -> dict[str, list[str]]:
    """Where each number is tested."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("*.txt")):
        for heading in cases(path.read_text()):
            if (stated := re.match(r"[\d, -]+b?(?= )", heading)) is not None:
                for number in numbers(stated[0]):
                    found[number].append(f"cleaning/cases/{path.name}")
    for name, path in SCENARIOS.items():
        stated = re.search(r"\(cases? ([^)]*)\)", json.loads(path.read_text())["why"])
        if stated is not None and name not in PARTLY and name not in NOT_AT_ALL:
            for number in numbers(stated[1]):
                found[number].append(f"kafka/scenarios/{path.name}")
    for place, text in TESTS.items():
        for number in numbers(text):
            found[number].append(place)
    return found


def specified() -> list[str]:
    return [number for text in GROUPS.values() for number in numbers(text)]


def test_every_number_is_tested_or_says_why_not() -> None:
    found = places()
    assert [number for number in specified() if number not in found and number not in NOT_HERE] == []
    assert [number for number in NOT_HERE if number in found] == []


def test_the_tests_that_are_named_exist() -> None:
    for place in TESTS:
        path, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), place


if __name__ == "__main__":
    known = places()
    for group, text in GROUPS.items():
        print(f"{group}:")
        for number in numbers(text):
            print(
                f"  {number:>5}  {', '.join(dict.fromkeys(known.get(number, []))) or 'not here: ' + NOT_HERE[number]}"
            )
