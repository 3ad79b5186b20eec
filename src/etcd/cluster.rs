//! The facts on which all processes of a controller must agree, in etcd (L7).
//!
//! Must never be overwritten by a process that disagrees: what stands there is compared in the same transaction in
//! which it is written. Tested against real members in `tests/live/etcd`.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{Etcd, EtcdError, Keys, Repeat};
use crate::contract::{ClusterRecord, StoreError};

/// Writes the cluster's facts down on first use, and else compares them.
///
/// # Errors
/// [`StoreError::Mismatch`] names what stands there; [`StoreError::Unknown`] if etcd does not answer within `patience`.
///
/// # Cancel safety
/// The facts are written or not.
pub async fn agree(
    etcd: &Etcd,
    keys: &Keys,
    wanted: &ClusterRecord,
    patience: Duration,
) -> Result<ClusterRecord, StoreError> {
    loop {
        let (stands, written) = read(etcd, keys, patience).await?;
        let (agreed, compare) = match &stands {
            None => (wanted.first(), Compare::create_revision(keys.cluster(), CompareOp::Equal, 0)),
            Some(stands) => {
                let agreed = stands.agree(wanted)?;
                if agreed == *stands {
                    return Ok(agreed);
                }
                (agreed, Compare::mod_revision(keys.cluster(), CompareOp::Equal, written))
            }
        };
        let json = serde_json::to_vec(&agreed).map_err(|error| corrupt(keys, &error))?;
        let txn = Txn::new().when([compare]).and_then([TxnOp::put(keys.cluster(), json, None)]);
        let ask = |mut client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        // Another process was faster, or an earlier try of this one: what stands there now is looked at again.
        if etcd.call(patience, Repeat::Always, ask).await.map_err(|error| store_error(&error))?.succeeded() {
            return Ok(agreed);
        }
    }
}

/// Compares the cluster's facts with what stands there, and writes nothing.
///
/// # Errors
/// As [`agree`].
///
/// # Cancel safety
/// Safe.
pub async fn compare(etcd: &Etcd, keys: &Keys, wanted: &ClusterRecord, patience: Duration) -> Result<(), StoreError> {
    match read(etcd, keys, patience).await? {
        (Some(stands), _) => stands.agree(wanted).map(|_| ()),
        (None, _) => Ok(()),
    }
}

/// What stands there, and the revision at which it was written.
async fn read(etcd: &Etcd, keys: &Keys, patience: Duration) -> Result<(Option<ClusterRecord>, i64), StoreError> {
    let ask = |mut client: etcd_client::Client| {
        let key = keys.cluster();
        async move { client.get(key, None).await }
    };
    let found = etcd.call(patience, Repeat::Always, ask).await.map_err(|error| store_error(&error))?;
    let Some(key) = found.kvs().first() else { return Ok((None, 0)) };
    let record = serde_json::from_slice(key.value()).map_err(|error| corrupt(keys, &error))?;
    Ok((Some(record), key.mod_revision()))
}

fn corrupt(keys: &Keys, error: &serde_json::Error) -> StoreError {
    let what = "another program wrote it: give this controller another name, or delete the key in etcd";
    StoreError::Corrupt { id: keys.cluster(), reason: format!("{error}; {what}") }
}

fn store_error(error: &EtcdError) -> StoreError {
    match error {
        EtcdError::Settings(_) | EtcdError::Denied(_) => StoreError::Unusable(error.to_string()),
        EtcdError::Refused(_) => StoreError::Refused(error.to_string()),
        _ => StoreError::Unknown(error.to_string()),
    }
}
