package store

import (
	"fmt"
	"net"
	"net/url"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// checkListen refuses an address that cannot be listened at, and certificates
// that nobody would accept, before the store is touched. It gives the address
// with the number that stands behind a name, since etcd takes no names.
func checkListen(o Options) (at string, err error) {
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return "", fmt.Errorf("%q is no address to listen at; write HOST:PORT", o.Listen)
	}
	if err := o.TLS.Check(); err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return "", fmt.Errorf("the store cannot listen at %s: %w; name an address of this machine and a free port", o.Listen, err)
	}
	return l.Addr().String(), l.Close()
}

// listenFor has etcd listen for other hosts. Who connects must show a
// certificate of the authority.
func listenFor(cfg *embed.Config, o Options) {
	at := url.URL{Scheme: "https", Host: o.Listen}
	cfg.ListenClientUrls = []url.URL{at}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: o.TLS.Cert, KeyFile: o.TLS.Key, TrustedCAFile: o.TLS.CA,
		ClientCertAuth: true,
	}
	cfg.TlsMinVersion = "TLS1.3"
	cfg.GRPCKeepAliveMinTime = pingAfter / 2
	cfg.GRPCKeepAliveInterval = pingAfter
	cfg.GRPCKeepAliveTimeout = pingTimeout
}
