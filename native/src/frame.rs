//! Bytes of a Produce request, and of its response. Pure.
//!
//! `parse` takes what clients usually send. It returns None for anything else, valid or not: Python's decoder decides
//! about that, and its errors are the only ones.

use std::ops::Range;

const KEY: i16 = 0;
const VERSIONS: std::ops::RangeInclusive<i16> = 3..=13;
const FLEXIBLE_SINCE: i16 = 9;
const TOPIC_IDS_SINCE: i16 = 13;
/// Batches of a request that are handled here: more are unusual.
const BATCHES_MAX: usize = 256;
pub const TOPIC_ID_BYTES: usize = 16;

/// Parts of a request that are bytes or text are ranges of its frame.
#[derive(Debug)]
pub struct Request {
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: Option<Range<usize>>,
    pub header_end: usize,
    pub acks: i16,
    pub topics: Vec<Topic>,
}

#[derive(Debug)]
pub struct Topic {
    /// Name, or id.
    pub name: Range<usize>,
    pub batches: Vec<Batch>,
}

#[derive(Debug)]
pub struct Batch {
    pub index: i32,
    pub records: Range<usize>,
}

impl Request {
    pub fn has_topic_ids(&self) -> bool {
        self.version >= TOPIC_IDS_SINCE
    }

    pub fn batch_count(&self) -> usize {
        self.topics.iter().map(|topic| topic.batches.len()).sum()
    }
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    is_flexible: bool,
}

impl Reader<'_> {
    fn range(&mut self, size: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.data.len())?;
        let begin = std::mem::replace(&mut self.at, end);
        Some(begin..end)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let range = self.range(N)?;
        self.data[range].try_into().ok()
    }

    fn int16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn int32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Reads the shortest encoding of an unsigned number below 2^28.
    fn uvarint(&mut self) -> Option<usize> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let [byte] = self.array()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (byte != 0 || shift == 0).then_some(value);
            }
        }
        None
    }

    /// Reads a length or count; None if it is null.
    fn length(&mut self, is_short: bool) -> Option<usize> {
        if self.is_flexible {
            self.uvarint()?.checked_sub(1)
        } else if is_short {
            self.int16()?.try_into().ok()
        } else {
            self.int32()?.try_into().ok()
        }
    }

    fn text(&mut self, size: usize) -> Option<Range<usize>> {
        let range = self.range(size)?;
        std::str::from_utf8(&self.data[range.clone()]).ok()?;
        Some(range)
    }

    /// Skips the end of a structure; None if it has tagged fields.
    fn tags(&mut self) -> Option<()> {
        (!self.is_flexible || self.array()? == [0]).then_some(())
    }

    /// Reads the transactional id; None unless it is null.
    fn no_transactional_id(&mut self) -> Option<()> {
        let is_null = if self.is_flexible { self.uvarint()? == 0 } else { self.int16()? == -1 };
        is_null.then_some(())
    }
}

/// Parses the frame of a request, without the size before it.
pub fn parse(frame: &[u8]) -> Option<Request> {
    let mut reader = Reader { data: frame, at: 0, is_flexible: false };
    let (key, version, correlation_id) = (reader.int16()?, reader.int16()?, reader.int32()?);
    if key != KEY || !VERSIONS.contains(&version) {
        return None;
    }
    let client_id = match reader.int16()? {
        -1 => None,
        size => Some(reader.text(size.try_into().ok()?)?),
    };
    reader.is_flexible = version >= FLEXIBLE_SINCE;
    reader.tags()?;
    let header_end = reader.at;
    reader.no_transactional_id()?;
    let acks = reader.int16()?;
    if !(-1..=1).contains(&acks) {
        return None;
    }
    let _timeout_ms = reader.int32()?;
    let topic_count = reader.length(false)?;
    if topic_count == 0 || topic_count > BATCHES_MAX {
        return None;
    }
    let mut topics = Vec::with_capacity(topic_count);
    let mut left = BATCHES_MAX;
    for _ in 0..topic_count {
        let name = if version >= TOPIC_IDS_SINCE {
            reader.range(TOPIC_ID_BYTES)?
        } else {
            let size = reader.length(true)?;
            reader.text(size)?
        };
        let batch_count = reader.length(false)?;
        left = left.checked_sub(batch_count).filter(|_| batch_count > 0)?;
        let mut batches = Vec::with_capacity(batch_count);
        for _ in 0..batch_count {
            let index = reader.int32()?;
            let size = reader.length(false)?;
            let records = reader.range(size)?;
            reader.tags()?;
            batches.push(Batch { index, records });
        }
        reader.tags()?;
        topics.push(Topic { name, batches });
    }
    reader.tags()?;
    (reader.at == frame.len()).then_some(Request { version, correlation_id, client_id, header_end, acks, topics })
}

/// Outcome of one batch.
pub struct Appended {
    pub base_offset: i64,
    pub log_start_offset: i64,
}

/// Encodes the response, with the size before it, to a request whose batches were all appended, in their order.
pub fn encode_response(frame: &[u8], request: &Request, appended: &[Appended]) -> Vec<u8> {
    let is_flexible = request.version >= FLEXIBLE_SINCE;
    let mut out = Vec::with_capacity(64 + appended.len() * 48);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&request.correlation_id.to_be_bytes());
    let length = |out: &mut Vec<u8>, value: usize| {
        if is_flexible {
            put_uvarint(out, value + 1);
        } else {
            out.extend_from_slice(&(value as i32).to_be_bytes());
        }
    };
    let tags = |out: &mut Vec<u8>| {
        if is_flexible {
            out.push(0);
        }
    };
    tags(&mut out);
    length(&mut out, request.topics.len());
    let mut results = appended.iter();
    for topic in &request.topics {
        if !request.has_topic_ids() {
            if is_flexible {
                put_uvarint(&mut out, topic.name.len() + 1);
            } else {
                out.extend_from_slice(&(topic.name.len() as i16).to_be_bytes());
            }
        }
        out.extend_from_slice(&frame[topic.name.clone()]);
        length(&mut out, topic.batches.len());
        for (batch, result) in topic.batches.iter().zip(results.by_ref()) {
            out.extend_from_slice(&batch.index.to_be_bytes());
            out.extend_from_slice(&0i16.to_be_bytes()); // error code
            out.extend_from_slice(&result.base_offset.to_be_bytes());
            out.extend_from_slice(&(-1i64).to_be_bytes()); // log append time
            if request.version >= 5 {
                out.extend_from_slice(&result.log_start_offset.to_be_bytes());
            }
            if request.version >= 8 {
                length(&mut out, 0); // record errors
                if is_flexible {
                    out.push(0); // error message: null
                } else {
                    out.extend_from_slice(&(-1i16).to_be_bytes());
                }
            }
            tags(&mut out);
        }
        tags(&mut out);
    }
    out.extend_from_slice(&0i32.to_be_bytes()); // throttle time
    tags(&mut out);
    let size = out.len() as i32 - 4;
    out[..4].copy_from_slice(&size.to_be_bytes());
    out
}

fn put_uvarint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request of two topics with two batches each.
    fn frame_of(version: i16) -> Vec<u8> {
        let is_flexible = version >= FLEXIBLE_SINCE;
        let mut out = Vec::new();
        out.extend_from_slice(&KEY.to_be_bytes());
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&7i32.to_be_bytes());
        out.extend_from_slice(&[0, 1, b'c']);
        let tags = |out: &mut Vec<u8>| out.extend(is_flexible.then_some(0u8));
        let count = |out: &mut Vec<u8>, value: usize, bytes: usize| match bytes {
            _ if is_flexible => put_uvarint(out, value + 1),
            2 => out.extend_from_slice(&(value as i16).to_be_bytes()),
            _ => out.extend_from_slice(&(value as i32).to_be_bytes()),
        };
        tags(&mut out);
        out.extend_from_slice(if is_flexible { &[0] } else { &[0xff, 0xff] });
        out.extend_from_slice(&(-1i16).to_be_bytes());
        out.extend_from_slice(&1000i32.to_be_bytes());
        count(&mut out, 2, 4);
        for name in [b'a', b'b'] {
            if version >= TOPIC_IDS_SINCE {
                out.extend_from_slice(&[name; TOPIC_ID_BYTES]);
            } else {
                count(&mut out, 1, 2);
                out.push(name);
            }
            count(&mut out, 2, 4);
            for index in 0..2i32 {
                out.extend_from_slice(&index.to_be_bytes());
                count(&mut out, 200, 4);
                out.extend_from_slice(&[name; 200]);
                tags(&mut out);
            }
            tags(&mut out);
        }
        tags(&mut out);
        out
    }

    fn check_ranges(frame: &[u8], request: &Request) {
        for topic in &request.topics {
            assert!(topic.name.end <= frame.len());
            assert!(topic.batches.iter().all(|batch| batch.records.end <= frame.len()));
        }
        let appended: Vec<_> =
            (0..request.batch_count()).map(|_| Appended { base_offset: 1, log_start_offset: 0 }).collect();
        let response = encode_response(frame, request, &appended);
        let size = i32::from_be_bytes(response[..4].try_into().unwrap());
        assert_eq!(size as usize, response.len() - 4);
    }

    #[test]
    fn every_version_is_parsed_and_every_cut_is_not() {
        for version in VERSIONS {
            let frame = frame_of(version);
            let request = parse(&frame).expect("a usual request");
            assert_eq!((request.version, request.correlation_id, request.acks), (version, 7, -1));
            assert_eq!(request.batch_count(), 4);
            assert!(request.topics.iter().flat_map(|topic| &topic.batches).all(|batch| batch.records.len() == 200));
            check_ranges(&frame, &request);
            for size in (0..frame.len()).step_by(if cfg!(miri) { 29 } else { 1 }) {
                assert!(parse(&frame[..size]).is_none());
            }
            assert!(parse(&[frame, vec![0]].concat()).is_none());
        }
    }

    #[test]
    fn tagged_fields_are_unusual() {
        let frame = frame_of(9);
        for at in [11, frame.len() - 1] {
            let mut tagged = frame.clone();
            assert_eq!(std::mem::replace(&mut tagged[at], 1), 0);
            assert!(parse(&tagged).is_none());
        }
    }

    #[test]
    fn no_byte_leads_outside_the_frame() {
        for version in [3, 9, 13] {
            let frame = frame_of(version);
            for at in 0..40 {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = frame.clone();
                    changed[at] = value;
                    if let Some(request) = parse(&changed) {
                        check_ranges(&changed, &request);
                    }
                }
            }
        }
    }
}
