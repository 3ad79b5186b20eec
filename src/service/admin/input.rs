//! What a request says, checked at the edge (I2): JSON bodies and queries.
//!
//! Must never hold more of a body than the bound, wait for one without end, or pass anything on that is not understood
//! as a whole. Tested in `tests/it/admin_input.rs`.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Query, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Uri};
use serde::de::DeserializeOwned;
use tokio_stream::StreamExt;

use super::problem::{MEDIA_TYPE, Problem, SLOW_BODY, TOO_LARGE};
use crate::engine::view::PAGE_MAX;

/// The longest body: 10,000 ids of a usual length.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// The JSON body of a request, which may take this long.
///
/// # Errors
/// Not JSON by its type, too large, too slow, or not what is asked for.
pub(super) async fn json<T: DeserializeOwned>(request: Request, patience: Duration) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let bytes = match tokio::time::timeout(patience, read(&parts.headers, body)).await {
        Ok(bytes) => bytes?,
        Err(_) => return Err(Problem::new(SLOW_BODY, format!("a body may take {patience:?}"))),
    };
    // A derived reader would take a list for an object with its fields in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("body: must be a JSON object, in UTF-8 without a byte order mark"));
    }
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        Problem::invalid(format!("body: {place}{}", error.inner()))
    })?;
    json.end().map_err(|error| Problem::invalid(format!("body: {error}")))?;
    Ok(value)
}

/// Only JSON by name: a page of another site can send a form or plain text without asking, but no JSON.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |what: &str| Problem::new(MEDIA_TYPE, format!("send {what}"));
    let json = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let name = value.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("application/json")
    });
    if !json {
        return Err(refused("the header `Content-Type: application/json` and a JSON body"));
    }
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(()),
        Some(_) => Err(refused("the body uncompressed, without Content-Encoding")),
    }
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Problem> {
    let too_large =
        || Problem::new(TOO_LARGE, format!("a body may have {BODY_BYTES_MAX} bytes; send the ids in parts"));
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    if length.is_some_and(|length: usize| length > BODY_BYTES_MAX) {
        return Err(too_large());
    }
    let hint = usize::try_from(body.size_hint().lower()).unwrap_or(BODY_BYTES_MAX);
    let mut bytes = Vec::with_capacity(hint.min(BODY_BYTES_MAX));
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        if bytes.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The query of a request.
///
/// # Errors
/// A parameter is unknown, given twice, or of the wrong form.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    // The decoder below would replace what is no UTF-8, and ask about another id.
    if percent_encoding::percent_decode_str(uri.query().unwrap_or_default()).decode_utf8().is_err() {
        return Err(Problem::invalid("query: not UTF-8"));
    }
    match Query::try_from_uri(uri) {
        Ok(Query(value)) => Ok(value),
        Err(error) => {
            let text = error.body_text();
            let detail = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Err(Problem::invalid(format!("query: {detail}")))
        }
    }
}

/// The size of a page.
///
/// # Errors
/// Out of range.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    match asked {
        None => Ok(PAGE_MAX),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::invalid(format!("query: limit: {limit} is out of range; use 1 to {PAGE_MAX}"))),
    }
}

/// Checks an id that came in a query.
///
/// # Errors
/// It breaks the id rules (I1).
pub(super) fn id(id: &str) -> Result<(), Problem> {
    crate::id::check(id).map_err(|error| Problem::invalid(format!("query: id: {error}")))
}
