// Command pki writes what a control plane on loopback needs into a directory, with the standard library
// alone: a certificate authority, a serving certificate for 127.0.0.1, and the keys of service accounts.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pki DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pki:", err)
		os.Exit(1)
	}
}

func write(directory string) error {
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "fairlead test authority"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(48 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	root, err := x509.CreateCertificate(rand.Reader, &template, &template, &authority.PublicKey, authority)
	if err != nil {
		return err
	}
	serving, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(48 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("10.0.0.1")},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, &leaf, &template, &serving.PublicKey, authority)
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return err
	}
	files := []struct {
		name, kind string
		data       func() ([]byte, error)
	}{
		{"ca.crt", "CERTIFICATE", func() ([]byte, error) { return root, nil }},
		{"ca.key", "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(authority) }},
		{"apiserver.crt", "CERTIFICATE", func() ([]byte, error) { return certificate, nil }},
		{"apiserver.key", "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(serving) }},
		{"sa.key", "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(accounts) }},
		{"sa.pub", "PUBLIC KEY", func() ([]byte, error) { return public, nil }},
	}
	for _, file := range files {
		data, err := file.data()
		if err != nil {
			return err
		}
		encoded := pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: data})
		if err := os.WriteFile(filepath.Join(directory, file.name), encoded, 0o600); err != nil {
			return err
		}
	}
	return nil
}
