//! The header of a record batch, and the rules for it: twin of the common case of `check_batch` in
//! `broker/kafka/partitions/batch_checks.py`. Pure.

use crc32c::crc32c;

pub const HEADER_BYTES: usize = 61;
const LOG_OVERHEAD_BYTES: i64 = 12;
const CHECKED_POSITION: usize = 21;
const MAGIC: u8 = 2;
pub const NO_PRODUCER_ID: i64 = -1;
/// Smallest size of a record.
const RECORD_BYTES_MIN: usize = 7;
/// Attributes below this value are a codec that every version may use, without any flag.
const PLAIN_ATTRIBUTES_END: i16 = 4;

/// Configs of a topic that concern each batch.
#[derive(Clone, Copy)]
pub struct Limits {
    pub max_message_bytes: i64,
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
}

pub struct Header {
    pub base_offset: i64,
    pub length: i32,
    pub magic: u8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

impl Header {
    /// Parses the header of a batch; None if there are no records behind it.
    pub fn parse(batch: &[u8]) -> Option<Self> {
        if batch.len() <= HEADER_BYTES {
            return None;
        }
        fn at<const N: usize>(batch: &[u8], position: usize) -> [u8; N] {
            batch[position..position + N].try_into().expect("the header is complete")
        }
        Some(Self {
            base_offset: i64::from_be_bytes(at(batch, 0)),
            length: i32::from_be_bytes(at(batch, 8)),
            magic: batch[16],
            crc: u32::from_be_bytes(at(batch, 17)),
            attributes: i16::from_be_bytes(at(batch, 21)),
            last_offset_delta: i32::from_be_bytes(at(batch, 23)),
            base_timestamp: i64::from_be_bytes(at(batch, 27)),
            max_timestamp: i64::from_be_bytes(at(batch, 35)),
            producer_id: i64::from_be_bytes(at(batch, 43)),
            producer_epoch: i16::from_be_bytes(at(batch, 51)),
            base_sequence: i32::from_be_bytes(at(batch, 53)),
            record_count: i32::from_be_bytes(at(batch, 57)),
        })
    }

    pub fn is_compressed(&self) -> bool {
        self.attributes != 0
    }

    /// True if all records, or the first, have no timestamp.
    pub fn has_untimed(&self) -> bool {
        self.max_timestamp < 0 || self.base_timestamp < 0
    }

    /// Returns whether the batch passes every rule. That of the shape of a compressed frame is left to the caller.
    pub fn is_usual(&self, batch: &[u8], limits: &Limits, now_ms: i64) -> bool {
        self.magic == MAGIC
            && self.base_offset == 0
            && i64::from(self.length) + LOG_OVERHEAD_BYTES == batch.len() as i64
            && batch.len() as i64 <= limits.max_message_bytes
            && self.record_count > 0
            && i64::from(self.record_count) == i64::from(self.last_offset_delta) + 1
            && (0..PLAIN_ATTRIBUTES_END).contains(&self.attributes)
            && (self.producer_id == NO_PRODUCER_ID || self.base_sequence >= 0)
            && self.max_timestamp <= now_ms.saturating_add(limits.timestamp_after_max_ms)
            && limits.timestamp_before_max_ms > now_ms
            && crc32c(&batch[CHECKED_POSITION..]) == self.crc
            && (self.is_compressed() || records_fit(&batch[HEADER_BYTES..], self.record_count as usize))
    }
}

/// Returns whether the bytes can be `count` records: twin of `records_fit` in `protocol/record_shape.py`.
fn records_fit(records: &[u8], count: usize) -> bool {
    let size = records.len();
    if count.checked_mul(RECORD_BYTES_MIN).is_none_or(|least| size < least) {
        return false;
    }
    let mut zigzag: u64 = 0;
    let mut end = 0;
    loop {
        let byte = records[end];
        zigzag |= u64::from(byte & 0x7f) << (7 * end);
        end += 1;
        if byte < 0x80 {
            break;
        }
        if end == 5 || end == size {
            return false;
        }
    }
    let length = (zigzag >> 1) as usize;
    if zigzag & 1 == 1 || length < RECORD_BYTES_MIN - 1 {
        return false;
    }
    let end = end + length;
    if count == 1 { end == size } else { size >= end && size - end >= (count - 1) * RECORD_BYTES_MIN }
}

/// Returns the sequence number `increment` later. 2^31 - 1 is followed by 0.
pub fn add_sequence(sequence: i32, increment: i32) -> i32 {
    sequence.wrapping_add(increment) & i32::MAX
}

/// Sets base offset and partition leader epoch in place: the checksum does not cover them.
pub fn patch(batch: &mut [u8], base_offset: i64, leader_epoch: i32) {
    batch[..8].copy_from_slice(&base_offset.to_be_bytes());
    batch[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_cannot_be_are_refused_without_looking_outside() {
        assert!(records_fit(&[12, 0, 0, 0, 1, 0, 0], 1));
        assert!(!records_fit(&[12, 0, 0, 0, 1, 0, 0], 2));
        assert!(!records_fit(&[13, 0, 0, 0, 1, 0, 0], 1));
        assert!(!records_fit(&[10, 0, 0, 0, 1, 0, 0], 1));
        assert!(!records_fit(&[0xff; 7], 1));
        assert!(!records_fit(&[0x80, 0x80, 0x80, 0x80, 0, 0, 0], 1));
        assert!(!records_fit(&[0; 7], usize::MAX));
        for size in 7..20 {
            for first in 0..=255 {
                let mut records = vec![0x80; size];
                records[0] = first;
                records_fit(&records, 1);
                records_fit(&records, 2);
            }
        }
    }

    #[test]
    fn sequences_wrap() {
        assert_eq!(add_sequence(i32::MAX, 1), 0);
        assert_eq!(add_sequence(i32::MAX - 1, 3), 1);
        assert_eq!(add_sequence(5, 0), 5);
    }

    #[test]
    fn a_batch_without_records_has_no_header() {
        assert!(Header::parse(&[0; HEADER_BYTES]).is_none());
        assert!(Header::parse(&[0; HEADER_BYTES + 1]).is_some());
    }
}
