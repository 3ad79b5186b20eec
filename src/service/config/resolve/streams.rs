//! `streams`.

use super::super::block::Block;
use super::super::bounds::{reconciler as http_keys, streams as keys, top};
use super::super::context::{Read, all};
use super::super::form::{Form as _, name};
use super::super::resolved::{Http, IdFrom, KafkaStream, List, Resync, Stream, StreamSource};
use super::super::tree::Value;
use super::files;
use super::reconciler::exec;

pub(super) fn streams(root: &Block<'_>) -> Read<Vec<Stream>> {
    let blocks = root.named_blocks(&top::STREAMS)?;
    all(blocks.into_iter().map(|(key, block)| {
        let path = root.path_of(&format!("{}.{key}", top::STREAMS.name));
        let named = name(&key).map_err(|why| {
            let message = format!("the name of the stream {why}; allowed: {}", top::NAME.form.allowed());
            root.cx.fault(&path, message)
        });
        let stream = block.and_then(|block| stream(block, key));
        named.and(stream)
    }))
}

fn stream(block: Block<'_>, name: String) -> Read<Stream> {
    let kafka = block.optional_block(&keys::KAFKA).and_then(|block| block.map(kafka).transpose());
    let resync = block.optional_block(&keys::RESYNC).and_then(|block| block.map(resync).transpose());
    let http = block.optional_block(&keys::HTTP).map(|block| block.map(Block::close));
    let critical = block.get(&keys::CRITICAL);
    let mut sources = Vec::new();
    let (kafka, resync, http) = (kafka?, resync?, http?);
    sources.extend(kafka.map(StreamSource::Kafka));
    sources.extend(resync.map(StreamSource::Resync));
    sources.extend(http.map(|()| StreamSource::Http));
    let source = match (sources.pop(), sources.len()) {
        (Some(source), 0) => source,
        (None, _) => {
            return Err(block.cx.fault(&block.path, "needs one of kafka, resync and http: where events come from"));
        }
        _ => {
            return Err(block
                .cx
                .fault(&block.path, "has more than one of kafka, resync and http; make them two streams"));
        }
    };
    block.close();
    Ok(Stream { name, critical: critical?, source })
}

fn kafka(block: Block<'_>) -> Read<KafkaStream> {
    let topics = block.list(&keys::TOPICS);
    let id = block.block(&keys::ID).and_then(id);
    let dead_letter = block.maybe(&keys::DEAD_LETTER);
    let hand_off = block.maybe(&keys::HAND_OFF);
    block.close();
    let (dead_letter, hand_off) = (dead_letter?.flatten(), hand_off?.flatten());
    Ok(KafkaStream { topics: topics?, id: id?, dead_letter, hand_off })
}

fn id(block: Block<'_>) -> Read<IdFrom> {
    let (from, pointer) = (block.get(&keys::FROM), block.maybe(&keys::POINTER));
    let (from, pointer) = (from?, pointer?);
    let id = match (from, pointer) {
        (IdFrom::Key { .. }, pointer) => IdFrom::Key { pointer },
        (IdFrom::Value { .. }, Some(pointer)) => IdFrom::Value { pointer },
        (IdFrom::Value { .. }, None) => {
            return Err(block.fault(&keys::FROM, "value needs a pointer, as pointer: /meta/id"));
        }
        (from, None) => from,
        (_, Some(_)) => return Err(block.fault(&keys::POINTER, "goes with from: key and from: value only")),
    };
    block.close();
    Ok(id)
}

fn resync(block: Block<'_>) -> Read<Resync> {
    let every = block.get(&keys::EVERY);
    let jitter = block.get(&keys::JITTER);
    let list = block.block(&keys::LIST).and_then(list);
    block.close();
    let (list, timeout) = list?;
    Ok(Resync { every: every?, jitter: jitter?, list, timeout })
}

fn list(block: Block<'_>) -> Read<(List, std::time::Duration)> {
    let http = list_http(&block);
    let exec = exec(&block, &keys::LIST_EXEC);
    let timeout = block.get(&keys::LIST_TIMEOUT);
    let list = match (http?, exec?) {
        (Some(http), None) => List::Http(http),
        (None, Some(exec)) => List::Exec(exec),
        (None, None) => return Err(block.cx.fault(&block.path, "needs one of http and exec: what gives the ids")),
        (Some(_), Some(_)) => return Err(block.fault(&keys::LIST_EXEC, "stands beside http; keep one of them")),
    };
    block.close();
    Ok((list, timeout?))
}

fn list_http(block: &Block<'_>) -> Read<Option<Http>> {
    let Some(node) = block.node(&keys::LIST_HTTP)? else { return Ok(None) };
    let path = block.path_of(keys::LIST_HTTP.name);
    if matches!(node.value, Value::Text(_)) {
        return Ok(Some(Http { url: block.cx.parse(&keys::LIST_URL.form, node, &path)?, ..Http::default() }));
    }
    let block = Block::open(block.cx, node, &path, keys::LIST_HTTP.form.section)?;
    let url = block.get(&keys::LIST_URL);
    let authorization_file = files::secret_file(&block, &http_keys::AUTHORIZATION_FILE);
    let ca_file = files::pem(&block, &http_keys::CA_FILE, "CERTIFICATE");
    block.close();
    Ok(Some(Http { url: url?, authorization_file: authorization_file?, ca_file: ca_file?, ..Http::default() }))
}
