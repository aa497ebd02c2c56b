from itertools import islice

from scripts.demo.flights import Tally, encode, read_flights, to_flight

ROW = {
    "year": "2013", "month": "1", "day": "1", "dep_time": "NA", "sched_dep_time": "1630", "dep_delay": "NA",
    "arr_time": "NA", "sched_arr_time": "1815", "arr_delay": "NA", "carrier": "EV", "flight": "4308",
    "tailnum": "N18120", "origin": "EWR", "dest": "RDU", "air_time": "NA", "distance": "416", "hour": "16",
    "minute": "30", "time_hour": "2013-01-01T21:00:00Z",
}  # fmt: skip


def test_a_row_becomes_numbers_nulls_and_a_time() -> None:
    flight = to_flight(ROW)
    assert flight.carrier == "EV"
    assert flight.document["dep_delay"] is None
    assert flight.document["distance"] == 416
    assert flight.document["tailnum"] == "N18120"
    assert flight.timestamp_ms == 1_357_075_800_000
    assert encode(flight.document).startswith(b'{"year":2013,"month":1,"day":1,"dep_time":null,')


def test_tallies_tell_different_flights_apart() -> None:
    one, other = Tally(), Tally()
    flight = to_flight(ROW)
    one.add(flight.document, flight.timestamp_ms)
    other.add(flight.document, flight.timestamp_ms + 1)
    assert (one.rows, one.cancelled, one.delay_minutes, one.by_carrier["EV"]) == (1, 1, 0, 1)
    assert one != other


def test_the_data_set_is_read() -> None:
    first, second = islice(read_flights(), 2)
    assert (first.carrier, first.document["flight"], second.document["tailnum"]) == ("UA", 1545, "N24211")
