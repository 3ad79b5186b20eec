//! `etcd`.

use super::super::block::Block;
use super::super::bounds::etcd as keys;
use super::super::context::Read;
use super::super::resolved::{ClientCertificate, Etcd, EtcdUser, Tls};
use super::files;

pub(super) fn etcd(block: Block<'_>) -> Read<Etcd> {
    let endpoints = block.list(&keys::ENDPOINTS);
    let ttl = block.get(&keys::TTL).and_then(|ttl| match ttl.subsec_nanos() {
        0 => Ok(ttl),
        _ => Err(block.fault(&keys::TTL, "must be whole seconds: etcd counts a lease in seconds")),
    });
    let tls = block.optional_block(&keys::TLS).and_then(|block| block.map(tls).transpose());
    let auth = block.optional_block(&keys::AUTH).and_then(|block| block.map(auth).transpose());
    let endpoints = endpoints.and_then(|endpoints| {
        if let (Ok(Some(_)), Some(plain)) = (&tls, endpoints.iter().find(|url| url.starts_with("http://"))) {
            return Err(block.fault(&keys::ENDPOINTS, format!("{plain} is not encrypted and tls is set; say https://")));
        }
        match endpoints.iter().enumerate().find(|(at, url)| endpoints[..*at].contains(url)) {
            Some((_, twice)) => Err(block.fault(&keys::ENDPOINTS, format!("{twice} is listed twice; keep one"))),
            None => Ok(endpoints),
        }
    });
    block.close();
    Ok(Etcd { endpoints: endpoints?, ttl: ttl?, tls: tls?, user: auth? })
}

fn tls(block: Block<'_>) -> Read<Tls> {
    let ca_file = files::pem(&block, &keys::CA_FILE, "CERTIFICATE");
    let certificate_file = files::pem(&block, &keys::CERTIFICATE_FILE, "CERTIFICATE");
    let key_file = files::pem(&block, &keys::KEY_FILE, "PRIVATE KEY");
    let client = match (certificate_file?, key_file?) {
        (Some(certificate_file), Some(key_file)) => {
            Some(ClientCertificate { certificate_file, key_file, key_password: None })
        }
        (None, None) => None,
        (Some(_), None) => return Err(block.fault(&keys::CERTIFICATE_FILE, "needs key_file beside it")),
        (None, Some(_)) => return Err(block.fault(&keys::KEY_FILE, "needs certificate_file beside it")),
    };
    block.close();
    Ok(Tls { ca_file: ca_file?, client })
}

fn auth(block: Block<'_>) -> Read<EtcdUser> {
    let name = block.get(&keys::USERNAME);
    let password = files::secret(&block, &keys::PASSWORD, &keys::PASSWORD_FILE).and_then(|password| {
        password.ok_or_else(|| block.cx.fault(&block.path, "needs one of password_file and password"))
    });
    block.close();
    Ok(EtcdUser { name: name?, password: password? })
}
