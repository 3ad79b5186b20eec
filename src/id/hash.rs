//! Hashes that producers use to choose a Kafka partition, byte for byte as their clients compute them (K2).
//!
//! Each gives a non-negative number h; the partition is `h mod partitions`, and where the shard count divides the
//! partition count `h mod shards` is the partition's shard too. Sources: librdkafka `rdfnv1a.c`, `rdmurmur2.c`,
//! `rdcrc32.c`; Sarama `partitioner.go`; Kafka `Utils.murmur2`. Never change one: two versions in a rolling update must
//! agree (B31).

/// FNV-1a over 32 bits, offset basis 0x811c9dc5, prime 0x01000193 (Fowler, Noll, Vo).
#[must_use]
pub const fn fnv1a_32(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

/// A way in which Kafka producers choose the partition of a key.
///
/// The first three can be the cluster's `hash`; the other two only help to tell which partitioner a topic's producers
/// use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partitioner {
    /// Sarama's default, librdkafka's `fnv1a`, kafka-go's `Hash`: FNV-1a as a signed number, its sign dropped.
    #[default]
    Fnv1a,
    /// Java, Kafka Streams, Connect, franz-go, kafka-python: MurmurHash2 with the sign bit cleared.
    Murmur2,
    /// librdkafka's default and with it most bindings: CRC-32 (IEEE).
    Crc32,
    /// Sarama's reference partitioner, kafka-go's `ReferenceHash`: FNV-1a with the sign bit cleared.
    Fnv1aRef,
    /// franz-go's `SaramaHasher` on 64-bit machines: FNV-1a as an unsigned number.
    Fnv1aUnsigned,
}

impl Partitioner {
    /// All of them, in the order in which a check lists them.
    pub const ALL: [Self; 5] = [Self::Fnv1a, Self::Murmur2, Self::Crc32, Self::Fnv1aRef, Self::Fnv1aUnsigned];

    /// The name used in config and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fnv1a => "fnv1a",
            Self::Murmur2 => "murmur2",
            Self::Crc32 => "crc32",
            Self::Fnv1aRef => "fnv1a-ref",
            Self::Fnv1aUnsigned => "fnv1a-unsigned",
        }
    }

    /// The non-negative hash of a key; at most 2^31 for `fnv1a`, below 2^32 for all.
    #[must_use]
    pub fn hash(self, key: &[u8]) -> u32 {
        match self {
            Self::Fnv1a | Self::Fnv1aRef | Self::Fnv1aUnsigned => self.from_fnv(fnv1a_32(key)),
            Self::Murmur2 => murmur2(key) & 0x7fff_ffff,
            Self::Crc32 => crc32fast::hash(key),
        }
    }

    /// The same from an FNV-1a that is already at hand, so that one pass over the id gives shard and worker.
    #[expect(clippy::wrong_self_convention, reason = "reads as: the fnv1a hash, from its FNV")]
    pub(crate) const fn from_fnv(self, fnv: u32) -> u32 {
        match self {
            // Not `abs`: the hash 0x80000000 has no positive i32 (key "1468509572224").
            Self::Fnv1a => fnv.cast_signed().unsigned_abs(),
            Self::Fnv1aRef => fnv & 0x7fff_ffff,
            Self::Fnv1aUnsigned | Self::Murmur2 | Self::Crc32 => fnv,
        }
    }

    /// Whether the hash is made from FNV-1a.
    pub(crate) const fn is_fnv(self) -> bool {
        matches!(self, Self::Fnv1a | Self::Fnv1aRef | Self::Fnv1aUnsigned)
    }
}

/// MurmurHash2, 32 bits, with the seed 0x9747b28c that Kafka's Java client uses.
fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mut blocks = bytes.chunks_exact(4);
    #[expect(clippy::cast_possible_truncation, reason = "the algorithm takes the length modulo 2^32")]
    let mut hash = SEED ^ bytes.len() as u32;
    for block in &mut blocks {
        let mut k = u32::from_le_bytes([block[0], block[1], block[2], block[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = blocks.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors cross-checked against librdkafka, Sarama, franz-go, kafka-go and the Java client: h, h mod 12, h mod
    /// 100. Twelve shards on purpose: with a power of two `fnv1a-ref` and `fnv1a-unsigned` cannot be told apart.
    #[test]
    fn k2_b31_hashes_agree_with_the_producers() {
        type Row = (&'static [u8], u32, [(u32, u32, u32); 5]);
        let rows: [Row; 5] = [
            (
                b"default/bucket/alpha",
                0xea23_efca,
                [
                    (366_743_606, 2, 6),
                    (2_035_246_648, 4, 48),
                    (739_889_182, 10, 82),
                    (1_780_740_042, 6, 42),
                    (3_928_223_690, 2, 90),
                ],
            ),
            (
                b"order-42",
                0x5724_46f4,
                [
                    (1_461_995_252, 8, 52),
                    (501_153_024, 0, 24),
                    (1_475_806_942, 10, 42),
                    (1_461_995_252, 8, 52),
                    (1_461_995_252, 8, 52),
                ],
            ),
            (
                "d\u{e9}j\u{e0}/vu".as_bytes(),
                0x02ab_05cc,
                [
                    (44_762_572, 4, 72),
                    (422_505_089, 5, 89),
                    (3_778_473_795, 3, 95),
                    (44_762_572, 4, 72),
                    (44_762_572, 4, 72),
                ],
            ),
            (
                b"1468509572224",
                0x8000_0000,
                [
                    (2_147_483_648, 8, 48),
                    (523_911_825, 9, 25),
                    (1_398_823_225, 1, 25),
                    (0, 0, 0),
                    (2_147_483_648, 8, 48),
                ],
            ),
            (
                b"",
                0x811c_9dc5,
                [(2_128_831_035, 3, 35), (275_646_681, 9, 81), (0, 0, 0), (18_652_613, 5, 13), (2_166_136_261, 1, 61)],
            ),
        ];
        for (key, fnv, hashes) in rows {
            assert_eq!(fnv1a_32(key), fnv, "{key:?}");
            for (partitioner, (hash, mod_12, mod_100)) in Partitioner::ALL.into_iter().zip(hashes) {
                let h = partitioner.hash(key);
                assert_eq!((h, h % 12, h % 100), (hash, mod_12, mod_100), "{} of {key:?}", partitioner.name());
            }
        }
        assert_eq!(Partitioner::Fnv1a.hash(b"kafka"), 0x0d33_c4e1);
        assert_eq!(murmur2(b"kafka"), 0xd067_cf64);
        assert_eq!(murmur2(b""), 0x106e_08d9);
        assert_eq!(Partitioner::Crc32.hash(b"SheetJS") % 100, 26);
        assert_eq!(Partitioner::Murmur2.hash(b"foo") % 100, 16);
    }
}
