//! FNV-1a hash of bytes: the same on every machine and in every build. Not safe against chosen inputs.

/// Hash of no bytes.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

#[inline]
pub fn hash_text(text: &str) -> u64 {
    extended(START, text.bytes())
}

/// Hash of the bytes that `hash` stands for and of these.
#[inline]
pub fn extended(hash: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_reference() {
        let expected = [("", START), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)];
        for (text, hash) in expected {
            assert_eq!(hash_text(text), hash, "{text}");
        }
    }
}
