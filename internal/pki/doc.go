// Package pki makes the certificates that the substrate nodes know each other
// by, and reads them for TLS connections.
//
// There is one certificate authority for all substrate nodes that share a store.
// Whoever shows a certificate of it is one of them; nobody else gets in, neither
// to the store nor to an agent. A node's certificate serves both ends of a
// connection and names the node, and the addresses that it is reached at
// (RFC 5280 subject alternative names).
//
// Files are PEM (RFC 7468), mode 0600:
//
//	ca.pem, ca-key.pem       the authority; the key is needed only to make certificates
//	NAME.pem, NAME-key.pem   a substrate node
package pki
